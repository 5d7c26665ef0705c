"""Where option values come from, and how bad ones are reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrai_cli.config import Config, SamplingConfig
from astrai_cli.errors import InvalidInputError
from astrai_cli.options import all_options, group_types
from astrai_cli.settings import read_settings, update_group

PORT = st.none() | st.integers(0, 65535)


@given(file_port=PORT, variable_port=PORT, flag_port=PORT)
def test_later_sources_win(
    tmp_path_factory: pytest.TempPathFactory,
    file_port: int | None,
    variable_port: int | None,
    flag_port: int | None,
) -> None:
    file = tmp_path_factory.getbasetemp() / "options.toml"
    file.write_text("" if file_port is None else f"port = {file_port}\n")
    environ = {} if variable_port is None else {"ASTRAI_PORT": str(variable_port)}
    flags = {} if flag_port is None else {"port": str(flag_port)}

    settings = read_settings(flags, file=file, environ=environ)

    sources = [
        (flag_port, "--port"),
        (variable_port, "ASTRAI_PORT"),
        (file_port, f"{file}: port"),
        (8000, "default"),
    ]
    value, origin = next(source for source in sources if source[0] is not None)
    assert settings.config.serve.port == value
    assert settings.origins["port"] == origin


def test_without_sources_everything_is_at_its_default() -> None:
    settings = read_settings({}, environ={})
    assert settings.config == Config()
    assert set(settings.origins.values()) == {"default"}


def test_a_file_may_use_tables_or_plain_keys(tmp_path: Path) -> None:
    file = tmp_path / "astrai.toml"
    file.write_text('temperature = 0.5\nbatch_sizes = [2, 4]\n[serve]\nport = 1\nhost = "::1"\n')
    config = read_settings({}, file=file, environ={}).config
    assert config.sampling.temperature == 0.5
    assert config.bench.batch_sizes == (2, 4)
    assert (config.serve.port, config.serve.host) == (1, "::1")


def test_the_file_of_the_current_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "astrai.toml").write_text("threads = 3\n")
    monkeypatch.chdir(tmp_path)
    assert read_settings({}, environ={}).config.limits.threads == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "unknown option 'prot'"),
        ("[serve]\nthreads = 1", "unknown option 'threads' in [serve]"),
        ("[nothing]\nport = 1", "unknown option 'nothing'"),
        ("port = 1\n[serve]\nport = 2", "'port' is given twice"),
        ("port = true", "port: 'true' is not a whole number from 0 to 65535"),
        ("port = [1]", "port: '1' is not a whole number"),
        ('kv_dtype = "best"', "kv_dtype: 'best' is not one of float16, float32"),
        ("port =", "Invalid value"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "astrai.toml"
    file.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        read_settings({}, file=file, environ={})
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no\.toml: cannot be read"):
        read_settings({}, file=tmp_path / "no.toml", environ={})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_context", "1", "a whole number above 1 and up to 2147483647"),
        ("max_context", str(2**31), "a whole number above 1 and up to 2147483647"),
        ("temperature", "nan", "a number from 0.0 to 10.0"),
        ("top_p", "0", "a number above 0.0 and up to 1.0"),
        ("batch_sizes", "1,x", "whole numbers from 1 to 65536, separated by commas"),
        ("threads", "many", "a whole number from 1 to 1024"),
    ],
)
def test_a_bad_value_is_named_with_its_source_and_bounds(
    name: str, value: str, allowed: str
) -> None:
    option = all_options()[name]
    for origin, flags, environ in (
        (option.flag, {name: value}, {}),
        (option.variable, {}, {option.variable: value}),
    ):
        with pytest.raises(InvalidInputError) as caught:
            read_settings(flags, environ=environ)
        assert str(caught.value) == f"{origin}: {value!r} is not {allowed}"


def test_an_option_in_two_groups_has_one_definition_and_one_value() -> None:
    config = read_settings({"max_prefill_chunk": "64"}, environ={}).config
    assert config.export.max_prefill_chunk == config.limits.max_prefill_chunk == 64
    for name, option in all_options().items():
        fields = [group_types()[group].model_fields[name] for group in option.groups]
        assert all(repr(field) == repr(fields[0]) for field in fields)


def test_every_option_is_described_and_its_default_is_allowed() -> None:
    for option in all_options().values():
        assert option.help.endswith("."), option.name
        assert option.allowed
        if option.default is not None:
            assert read_settings({option.name: option.default}, environ={}).config == Config()


def test_given_options_are_told_from_defaults() -> None:
    sampling = read_settings({"top_k": "50"}, environ={}).config.sampling
    assert sampling.model_fields_set == {"top_k"}


def test_update_group_changes_only_what_is_named() -> None:
    sampling = update_group(SamplingConfig(temperature=0.5), {"top_k": "7"}, "/params")
    assert sampling == SamplingConfig(temperature=0.5, top_k=7)
    assert sampling.model_fields_set == {"temperature", "top_k"}
    with pytest.raises(InvalidInputError, match=r"/params: top_k: '-1' is not a whole number"):
        update_group(sampling, {"top_k": "-1"}, "/params")


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config = read_settings({"quality": "~/text"}, environ={"ASTRAI_CACHE_DIR": "~/models"}).config
    assert config.bench.quality == Path("/home/me/text")
    assert config.model.cache_dir == Path("/home/me/models")


def test_a_secret_that_was_to_be_set_is_not_left_out() -> None:
    with pytest.raises(InvalidInputError, match="ASTRAI_API_KEY is empty"):
        read_settings({}, environ={"ASTRAI_API_KEY": ""})
    assert read_settings({}, environ={"ASTRAI_PORT": ""}).config.serve.port == 8000


def test_secrets_are_not_printed() -> None:
    config = read_settings({"api_key": "hunter2"}, environ={}).config
    assert "hunter2" not in repr(config) + config.model_dump_json()
