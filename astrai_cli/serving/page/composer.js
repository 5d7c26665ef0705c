import { announce, byId, element, icon, iconButton } from "./dom.js";

const IMAGE_TYPES = ["image/png", "image/jpeg"];
const MAX_IMAGE_BYTES = 20 * 1024 * 1024;

/** The message field: text, images, and the one button that sends or stops. */
export class Composer {
  #form = byId("composer");
  #field = byId("message");
  #button = byId("send");
  #thumbnails = byId("thumbnails");
  #images = [];
  #isAnswering = false;
  #actions;

  /** actions: send(text, images), which tells whether it was taken; stop(); complain(text). */
  constructor(actions) {
    this.#actions = actions;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#isAnswering) actions.stop();
      else this.#send();
    });
    this.#field.addEventListener("keydown", (event) => {
      if (!isSendKey(event)) return;
      event.preventDefault();
      if (!this.#isAnswering) this.#send();
    });
    this.#field.addEventListener("input", () => this.#update());
    this.#takeFiles();
    this.#update();
  }

  set isAnswering(value) {
    this.#isAnswering = value;
    this.#update();
  }

  focus() {
    this.#field.focus();
  }

  async #send() {
    const text = this.#field.value.trim();
    if (!text && !this.#images.length) return;
    if (!(await this.#actions.send(text, this.#images))) return;
    this.#field.value = "";
    this.#images = [];
    this.#showImages();
    this.#field.focus();
  }

  #update() {
    fitToText(this.#field);
    const label = this.#isAnswering ? "Stop" : "Send";
    this.#button.setAttribute("aria-label", label);
    this.#button.title = this.#isAnswering ? "Stop (Esc)" : "Send (Enter)";
    this.#button.replaceChildren(icon(this.#isAnswering ? "stop" : "send"));
    const isEmpty = !this.#field.value.trim() && !this.#images.length;
    this.#button.setAttribute("aria-disabled", String(isEmpty && !this.#isAnswering));
  }

  /** Images come from the file dialog, the clipboard, or are dropped anywhere. */
  #takeFiles() {
    const picker = byId("image-file");
    byId("attach").addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => {
      this.#attach(picker.files);
      picker.value = "";
    });
    this.#field.addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.#attach(event.clipboardData.files);
    });
    const drops = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!drops(event)) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) document.body.classList.remove("dropping");
    });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!drops(event)) return;
      event.preventDefault();
      this.#attach(event.dataTransfer.files);
    });
  }

  async #attach(files) {
    for (const file of files) {
      if (!IMAGE_TYPES.includes(file.type)) {
        this.#actions.complain(`${file.name} is not a PNG or JPEG image.`);
      } else if (file.size > MAX_IMAGE_BYTES) {
        this.#actions.complain(`${file.name} is over 20 MiB, the most an image may have.`);
      } else {
        this.#images.push(await dataUrl(file));
        announce(`${file.name} is attached.`);
      }
    }
    this.#showImages();
    this.#field.focus();
  }

  #showImages() {
    this.#thumbnails.replaceChildren(
      ...this.#images.map((url, index) => {
        const remove = iconButton("cross", `Remove image ${index + 1}`, () => {
          this.#images.splice(index, 1);
          this.#showImages();
          this.#field.focus();
        });
        const alt = `Image ${index + 1} to send`;
        return element("li", {}, element("img", { src: url, alt }), remove);
      }),
    );
    this.#update();
  }
}

/** Enter alone sends. Not the one that ends a word in an input method, which 229 stands for. */
export function isSendKey(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
}

/** As high as its text, within the bounds of the style sheet. */
export function fitToText(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}
