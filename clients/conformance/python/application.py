"""The Python test application: takes commands from the driver, and reports events (see ``../README.md``)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NoReturn, TextIO

import sidekeeper

ON_LOOP = os.environ.get("CONFORMANCE_FLAVOUR", "asyncio") == "asyncio"

#: How often a handler on the loop looks whether it has been released, in seconds.
LOOK_INTERVAL = 0.005

REFUSED, BAD_SETTINGS = 3, 2

log = logging.getLogger("conformance")
_lock = threading.Lock()


def tell(event: str, **fields: Any) -> None:
    """Writes an event."""
    with _lock:
        print(json.dumps({"event": event, **fields, "time": time.time()}), flush=True)


def instant(given: datetime | None) -> float | None:
    """A time as events have it."""
    return None if given is None else given.timestamp()


class JsonFormatter(logging.Formatter):
    """A log record as a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = {name: getattr(record, name, None) for name in ("job", "item", "execution_id")}
        message = record.getMessage()
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        return json.dumps({"level": record.levelname, "logger": record.name, "message": message, **fields})


@dataclasses.dataclass
class Behaviour:
    """What an execution does."""

    behaviour: str = "succeed"
    message: str = ""
    seconds: float = 0.0
    checkpoint: str = ""


class Running:
    """An execution whose handler has begun."""

    def __init__(self, execution: sidekeeper.Execution, behaviour: Behaviour) -> None:
        self.execution = execution
        self.behaviour = behaviour
        self.released = threading.Event()
        seconds = behaviour.seconds if behaviour.behaviour == "slow" else float("inf")
        self.until = time.monotonic() + seconds

    def over(self) -> bool:
        """Whether it need not wait any longer."""
        return self.released.is_set() or time.monotonic() >= self.until

    def tell(self, event: str, **fields: Any) -> None:
        """Reports an event of the execution."""
        one = self.execution
        tell(event, job=one.job_name, item=one.item, execution_id=one.execution_id, **fields)

    def begin(self) -> None:
        """Reports the begin, with all fields that the handler gets."""
        one = self.execution
        self.tell(
            "started",
            parameter=one.item_parameter,
            job_parameter=one.job_parameter,
            total=one.sharding_total_count,
            task_id=one.task_id,
            source=one.source.name,
            scheduled=instant(one.scheduled_time),
            fired=instant(one.fire_time),
            deadline=instant(one.deadline),
            token=one.fencing_token,
            attempt=one.attempt,
            checkpoint=None if one.checkpoint is None else one.checkpoint.decode(),
            traceparent=one.traceparent,
        )
        log.info("handling")

    def cancelled(self) -> None:
        """Reports that the handler has seen the Cancel."""
        reason = self.execution.cancel_reason
        self.tell("cancelled", reason=None if reason is None else reason.name)

    def end(self) -> None:
        """Ends as the behaviour says, whatever it has waited for."""
        kind = self.behaviour.behaviour
        if kind == "reject":
            self.tell("ended", outcome="rejected")
            raise sidekeeper.Reject(self.behaviour.message)
        if kind in ("fail", "checkpoint_and_fail"):
            self.tell("ended", outcome="failure")
            raise RuntimeError(self.behaviour.message)
        if kind == "panic":
            self.tell("ended", outcome="failure")
            self.mistake()
        self.tell("ended", outcome="success")

    @staticmethod
    def mistake() -> NoReturn:
        """A programmer's mistake."""
        raise AssertionError(1 // 0)


class UnderLock:
    """The work under a lock, on a thread of its own."""

    def __init__(self, command: dict[str, Any]) -> None:
        names = ("name", "path", "permits", "wait_timeout", "hold_timeout", "lock_delay", "holder", "application_id")
        given = {name: command[name] for name in names if name in command}
        self.name: str = command.get("name") or command["path"]
        mode = sidekeeper.LockMode[command["mode"]] if "mode" in command else None
        self.lock = sidekeeper.lock(mode=mode, **given)
        self.released = threading.Event()
        self.asked = False

    def run(self) -> None:
        """Holds the lock until the driver ends it, or until it is lost."""
        try:
            if ON_LOOP:
                asyncio.run(self.run_on_loop())
            else:
                self.run_on_thread()
        except sidekeeper.LockError as error:
            self.tell("lock_failed", code=error.code, reason=error.reason, message=error.details)
        else:
            self.tell("lock_released")

    async def run_on_loop(self) -> None:
        """The work as a coroutine, which the client cancels."""
        async with self.lock:
            self.held()
            try:
                while not self.over():  # noqa: ASYNC110 - of another thread
                    await asyncio.sleep(LOOK_INTERVAL)
            except asyncio.CancelledError:
                self.tell("lock_cancelled")
                raise

    def run_on_thread(self) -> None:
        """The work as a function, which looks by itself whether the lock is lost."""
        with self.lock:
            self.held()
            while not self.over():
                if self.lock.wait_lost(LOOK_INTERVAL):
                    self.tell("lock_cancelled")
                    return

    def held(self) -> None:
        """Reports that the lock is held."""
        self.tell("lock_held", token=self.lock.fencing_token, node=self.lock.node_path)

    def over(self) -> bool:
        """Whether the work has ended. Reports that another program asks for the lock."""
        if self.lock.revocation_requested and not self.asked:
            self.asked = True
            self.tell("lock_asked")
        return self.released.is_set()

    def tell(self, event: str, **fields: Any) -> None:
        """Reports an event of the lock."""
        tell(event, lock=self.name, **fields)


class Candidate:
    """The work of a leader, on a thread of its own."""

    def __init__(self, command: dict[str, Any]) -> None:
        names = ("name", "path", "value", "application_id")
        given = {name: command[name] for name in names if name in command}
        self.name: str = command.get("name") or command["path"]
        self.campaign = sidekeeper.leader(**given)
        self.lingers: bool = command.get("lingers", False)
        #: The successor for each time that it is to resign; empty: the next candidate in the order.
        self.resignations: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.suspended = False

    def run(self) -> None:
        """Leads until the driver ends it, or until the leadership is lost."""
        try:
            if ON_LOOP:
                asyncio.run(self.run_on_loop())
            else:
                self.run_on_thread()
        except sidekeeper.ElectionError as error:
            self.failed("election_failed", error)
        else:
            self.tell("resigned")

    async def run_on_loop(self) -> None:
        """The work as a coroutine, which the client cancels."""
        async with self.campaign:
            self.leads()
            try:
                while True:
                    await asyncio.sleep(LOOK_INTERVAL)
                    successor = self.look()
                    if successor is None:
                        continue
                    try:
                        await self.campaign.resign_async(successor=successor)
                    except sidekeeper.ElectionError as error:
                        self.failed("resign_failed", error)
                    else:
                        return
            except asyncio.CancelledError:
                self.tell("leader_cancelled")
                while self.lingers and self.resignations.empty():  # noqa: ASYNC110 - of another thread
                    await asyncio.sleep(LOOK_INTERVAL)
                raise

    def run_on_thread(self) -> None:
        """The work as a function, which looks by itself whether the leadership is lost."""
        with self.campaign:
            self.leads()
            while not self.campaign.wait_lost(LOOK_INTERVAL):
                successor = self.look()
                if successor is None:
                    continue
                try:
                    self.campaign.resign(successor=successor)
                except sidekeeper.ElectionError as error:
                    self.failed("resign_failed", error)
                else:
                    return
            self.tell("leader_cancelled")
            if self.lingers:
                self.resignations.get()

    def leads(self) -> None:
        """Reports that it leads."""
        self.tell("leads", term=self.campaign.term, node=self.campaign.node_path)

    def look(self) -> str | None:
        """Reports whether the registry answers. Returns the successor if it is to resign."""
        if self.campaign.suspended != self.suspended:
            self.suspended = self.campaign.suspended
            self.tell("leader_suspended", suspended=self.suspended)
        try:
            return self.resignations.get_nowait()
        except queue.Empty:
            return None

    def failed(self, event: str, error: sidekeeper.ElectionError) -> None:
        """Reports the client's error."""
        self.tell(event, code=error.code, reason=error.reason, message=error.details)

    def tell(self, event: str, **fields: Any) -> None:
        """Reports an event of the election."""
        tell(event, election=self.name, **fields)


class Observer:
    """An observer of an election, on a thread of its own."""

    def __init__(self, command: dict[str, Any]) -> None:
        given = {name: command[name] for name in ("name", "path") if name in command}
        self.name: str = command.get("name") or command["path"]
        self.leaders = sidekeeper.observe_leader(**given)

    def run(self) -> None:
        """Reports each leader until the observation ends."""
        try:
            if ON_LOOP:
                asyncio.run(self.run_on_loop())
            else:
                for leader in self.leaders:
                    self.seen(leader)
        except sidekeeper.ElectionError as error:
            fields = {"code": error.code, "reason": error.reason, "message": error.details}
            tell("observation_failed", election=self.name, **fields)

    async def run_on_loop(self) -> None:
        """The same in a coroutine."""
        async for leader in self.leaders:
            self.seen(leader)

    def seen(self, leader: sidekeeper.Leader | None) -> None:
        """Reports a leader."""
        value, term = (None, None) if leader is None else (leader.value, leader.term)
        tell("leader_seen", election=self.name, value=value, term=term)


class Driven:
    """The application, and what the driver has asked for."""

    def __init__(self) -> None:
        self.behaviours: dict[tuple[str, int], Behaviour] = {}
        self.defaults: dict[str, Behaviour] = {}
        self.default = Behaviour()
        self.running: list[Running] = []
        self.locks: list[UnderLock] = []
        self.candidates: list[Candidate] = []
        self.held: set[str] = set()
        self.callbacks_released = threading.Event()
        self.app: sidekeeper.Application | None = None

    def begin(self, execution: sidekeeper.Execution) -> Running:
        job, item = execution.job_name, execution.item
        behaviour = next(
            (self.behaviours[key] for key in ((job, item), ("", item)) if key in self.behaviours),
            self.defaults.get(job, self.default),
        )
        one = Running(execution, behaviour)
        self.running.append(one)
        one.begin()
        return one

    # Handlers, one for each flavour.

    async def handle_on_loop(self, execution: sidekeeper.Execution) -> None:
        """The handler as a coroutine."""
        one = self.begin(execution)
        try:
            if one.behaviour.behaviour in ("hold", "slow", "ignore_cancel"):
                await self.wait_on_loop(one)
            elif one.behaviour.behaviour == "checkpoint_and_fail":
                self.told_progress(one, await execution.progress_async(one.behaviour.checkpoint.encode()))
            one.end()
        finally:
            self.running.remove(one)

    @staticmethod
    async def wait_on_loop(one: Running) -> None:
        """Waits until the driver releases it, or until it stops for a Cancel."""
        while not one.over():
            try:
                await asyncio.sleep(LOOK_INTERVAL)
            except asyncio.CancelledError:
                one.cancelled()
                if one.behaviour.behaviour != "ignore_cancel":
                    one.tell("ended", outcome="failure")
                    raise

    def handle_on_thread(self, execution: sidekeeper.Execution) -> None:
        """The handler as a function."""
        one = self.begin(execution)
        try:
            if one.behaviour.behaviour in ("hold", "slow", "ignore_cancel"):
                self.wait_on_thread(one)
            elif one.behaviour.behaviour == "checkpoint_and_fail":
                self.told_progress(one, execution.progress(one.behaviour.checkpoint.encode()))
            one.end()
        finally:
            self.running.remove(one)

    @staticmethod
    def wait_on_thread(one: Running) -> None:
        """Waits until the driver releases it, or until it stops for a Cancel."""
        told = False
        while not one.over():
            if told:
                one.released.wait(LOOK_INTERVAL)
            elif one.execution.cancelled.wait(LOOK_INTERVAL):
                told = True
                one.cancelled()
                if one.behaviour.behaviour != "ignore_cancel":
                    one.tell("ended", outcome="failure")
                    one.execution.raise_if_cancelled()

    # Callbacks.

    def callbacks(self) -> dict[str, Any]:
        """The callbacks of a job, by the names of ``Application.job``."""

        def of(told: Any, kind: str = "") -> Any:
            async def on_loop(event: Any) -> None:
                told(event)
                while kind in self.held and not self.callbacks_released.is_set():  # noqa: ASYNC110 - of another thread
                    await asyncio.sleep(LOOK_INTERVAL)

            def on_thread(event: Any) -> None:
                told(event)
                if kind in self.held:
                    self.callbacks_released.wait()

            return on_loop if ON_LOOP else on_thread

        return {
            "on_assignment": of(self.told_assignment),
            "on_assigned": of(lambda change: self.told_items("assigned", change), "assigned"),
            "on_revoked": of(lambda change: self.told_items("revoked", change), "revoked"),
            "on_lost": of(lambda change: self.told_items("lost", change), "lost"),
            "on_leadership": of(lambda one: tell("leadership", job=one.job_name, leader=one.leader)),
            "on_session": of(lambda one: tell("session", job=one.job_name, state=one.state.name)),
        }

    @staticmethod
    def items(items: Iterable[sidekeeper.AssignedItem]) -> list[dict[str, Any]]:
        """Items as events have them."""
        return [
            {"item": one.item, "parameter": one.item_parameter, "token": one.fencing_token, "disabled": one.disabled}
            for one in items
        ]

    def told_assignment(self, one: sidekeeper.Assignment) -> None:
        tell(
            "assignment",
            job=one.job_name,
            instance=one.instance_id,
            generation=one.generation,
            total=one.sharding_total_count,
            items=self.items(one.items),
            leader=one.leader,
            reason=one.reason.name,
        )

    def told_items(self, event: str, one: sidekeeper.ItemsChange) -> None:
        tell(
            event,
            job=one.job_name,
            instance=one.instance_id,
            generation=one.generation,
            items=self.items(one.items),
            reason=one.reason.name,
        )

    @staticmethod
    def told_progress(one: Running, progress: sidekeeper.Progress) -> None:
        one.tell(
            "progress",
            deadline=instant(progress.deadline),
            cancelled=progress.cancelled,
            superseded=progress.superseded,
        )

    # Commands.

    def obey(self, command: dict[str, Any]) -> None:
        """Does what a command says, other than ``run``."""
        name = command["command"]
        if name == "stop":
            if self.app is not None:
                self.app.stop(immediately=command.get("immediately", False), for_good=command.get("for_good", False))
            return
        getattr(self, name)(command)
        tell("done", command=name)

    def behave(self, command: dict[str, Any]) -> None:
        given = {field.name: command[field.name] for field in dataclasses.fields(Behaviour) if field.name in command}
        behaviour = Behaviour(**given)
        job, items = command.get("job"), command.get("items")
        if items is not None:
            self.behaviours.update({(job or "", item): behaviour for item in items})
            return
        self.behaviours = {key: one for key, one in self.behaviours.items() if job not in (None, key[0]) and key[0]}
        if job is None:
            self.default, self.defaults = behaviour, {}
        else:
            self.defaults[job] = behaviour

    def release(self, command: dict[str, Any]) -> None:
        for one in list(self.running):
            if command.get("items") is None or one.execution.item in command["items"]:
                one.released.set()

    def progress(self, command: dict[str, Any]) -> None:
        one = next(one for one in self.running if one.execution.item == command["item"])
        given = command.get("checkpoint")
        checkpoint = None if given is None else given.encode()

        def report() -> None:
            try:
                extend = command.get("extend_deadline", True)
                self.told_progress(one, one.execution.progress(checkpoint, extend_deadline=extend))
            except sidekeeper.ProgressError as error:
                one.tell("progress_failed", code=error.code)

        threading.Thread(target=report, daemon=True).start()

    def hold_callbacks(self, command: dict[str, Any]) -> None:
        self.callbacks_released.clear()
        self.held = set(command["kinds"])

    def release_callbacks(self, _: dict[str, Any]) -> None:
        self.held = set()
        self.callbacks_released.set()

    def trigger(self, command: dict[str, Any]) -> None:
        try:
            result = sidekeeper.trigger(command["job"])
        except sidekeeper.TriggerError as error:
            tell("trigger_failed", code=error.code, reason=error.reason)
        else:
            tell("triggered", instances=sorted({*result.triggered_instance_ids, *result.pending_instance_ids}))

    def lock(self, command: dict[str, Any]) -> None:
        one = UnderLock(command)
        self.locks.append(one)
        threading.Thread(target=one.run, daemon=True).start()

    def unlock(self, command: dict[str, Any]) -> None:
        for one in self.locks:
            if one.name == command["name"]:
                one.released.set()

    def stand(self, command: dict[str, Any]) -> None:
        one = Candidate(command)
        self.candidates.append(one)
        threading.Thread(target=one.run, daemon=True).start()

    def resign(self, command: dict[str, Any]) -> None:
        for one in self.candidates:
            if one.name == command["name"]:
                one.resignations.put(command.get("successor", ""))

    def observe(self, command: dict[str, Any]) -> None:
        threading.Thread(target=Observer(command).run, daemon=True).start()

    def run(self, command: dict[str, Any]) -> int:
        """Runs the client; returns the exit status."""
        try:
            app = sidekeeper.Application(**{key: command[key] for key in ("drain_timeout",) if key in command})
            for given in command["jobs"]:
                job = dict(given)
                configuration = job.pop("configuration", {})
                callbacks = self.callbacks() if job.pop("callbacks", True) else {}
                handler = self.handle_on_loop if ON_LOOP else self.handle_on_thread
                app.job(job.pop("name"), **configuration, **job, **callbacks)(handler)
        except ValueError as error:
            log.error("%s", error)
            return BAD_SETTINGS
        self.app = app
        tell("running")
        try:
            app.run()
        except sidekeeper.AttachError as error:
            tell("refused", job=error.job_name, code=error.code, reason=error.reason, message=error.details)
            return REFUSED
        tell("stopped")
        return 0


def main(commands: TextIO) -> int:
    """Takes the command ``run``, then the others beside it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(sidekeeper.LogFilter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("sidekeeper").setLevel(logging.DEBUG)
    driven = Driven()
    first = json.loads(commands.readline())
    while first["command"] != "run":
        driven.obey(first)
        first = json.loads(commands.readline())

    def read() -> None:
        for line in commands:
            driven.obey(json.loads(line))
        os._exit(1)  # the driver has ended

    threading.Thread(target=read, daemon=True).start()
    return driven.run(first)


if __name__ == "__main__":
    sys.exit(main(sys.stdin))
