"""The queue."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from astrai_cli.engine.task import Task, TaskState


class WaitingQueue:
    """Tasks that wait for a place, in order of arrival; preempted ones at their old places."""

    def __init__(self) -> None:
        self._tasks: list[Task] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def add(self, task: Task) -> None:
        insort(self._tasks, task, key=lambda each: each.id)

    def remove(self, task: Task) -> None:
        self._tasks.remove(task)

    def take_finished(self) -> list[Task]:
        """Remove and return the tasks that have ended without running."""
        finished = [task for task in self._tasks if task.state is TaskState.FINISHED]
        if finished:
            self._tasks = [task for task in self._tasks if task.state is not TaskState.FINISHED]
        return finished

    def take_all(self) -> list[Task]:
        tasks, self._tasks = self._tasks, []
        return tasks
