"""Attaching, callbacks, attaching again, and giving up."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

import sidekeeper
from sidekeeper._proto.v1 import attach_pb2, completion_pb2, job_pb2, lease_pb2
from sidekeeper.attachment import ProtocolError
from tests.sidecar import FakeSidecar, Stream, serving, soon


def ignore(execution: sidekeeper.Execution) -> None: ...


async def test_callbacks_get_every_event_in_order(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    events: asyncio.Queue[object] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def from_thread(event: object) -> None:
        loop.call_soon_threadsafe(events.put_nowait, event)

    app.job("orderSync", sharding_total_count=6, on_leadership=from_thread)(ignore)
    app.on_session("orderSync")(from_thread)

    @app.on_assignment("orderSync")
    async def on_assignment(assignment: sidekeeper.Assignment) -> None:
        events.put_nowait(assignment)

    @app.on_job_changed("orderSync")
    async def on_job_changed(change: sidekeeper.JobChange) -> None:
        events.put_nowait(change)

    async with serving(app):
        stream = await sidecar.stream([1, 4])
        stream.send(leadership_changed=attach_pb2.LeadershipChanged(leader=True))
        stream.send(
            session_changed=lease_pb2.SessionChanged(
                state=lease_pb2.SESSION_STATE_SUSPENDED, remaining_lease=Duration(seconds=4)
            )
        )
        stream.send(
            job_changed=attach_pb2.JobChanged(
                configuration=job_pb2.JobConfiguration(sharding_total_count=6, cron="0 0 * * * ?", failover=True),
                problems=[job_pb2.Problem(path="/orderSync/config", message="odd", code="JOB_SETTING_WRONG")],
            )
        )
        stream.send()  # an event of a newer sidecar
        stream.end()
        seen = [await soon(events.get()) for _ in range(5)]
    first = sidekeeper.Assignment(
        job_name="orderSync",
        instance_id=stream.instance_id,
        generation=1,
        sharding_total_count=6,
        items=(sidekeeper.AssignedItem(1, "p1", 101, False), sidekeeper.AssignedItem(4, "p4", 104, False)),
        added=(1, 4),
        revoked=(),
        leader=False,
        reason=sidekeeper.AssignmentReason.RESHARDED,
    )
    assert seen == [
        first,
        sidekeeper.Leadership("orderSync", stream.instance_id, True),
        sidekeeper.SessionChange("orderSync", sidekeeper.SessionState.SUSPENDED, timedelta(seconds=4)),
        sidekeeper.JobChange(
            "orderSync",
            sidekeeper.JobConfiguration(6, cron="0 0 * * * ?", failover=True),
            (sidekeeper.Problem("/orderSync/config", "odd", "JOB_SETTING_WRONG"),),
        ),
        first.detached(),
    ]
    assert first.detached().revoked == (1, 4)


async def test_acknowledged_after_the_callback_and_the_work_on_revoked_items(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    called, leave, begun, gate = (asyncio.Event() for _ in range(4))

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        assert called.is_set()  # the callback for the item comes first
        begun.set()
        if execution.item == 0:
            await gate.wait()

    @app.on_assignment("orderSync")
    async def on_assignment(assignment: sidekeeper.Assignment) -> None:
        called.set()
        await leave.wait()

    async with serving(app):
        stream = await sidecar.stream([0, 1])
        stream.execute(0)
        await soon(called.wait())
        assert not begun.is_set()
        leave.set()
        acknowledged = await sidecar.acknowledgement()
        assert (acknowledged.attachment_id, acknowledged.generation) == (stream.attachment_id, 1)
        await soon(begun.wait())
        stream.assign([1], generation=2, revoked=(0,))
        other = stream.execute(1)
        assert (await sidecar.result()).execution_id == other  # so the second callback has returned
        assert sidecar.no_acknowledgement()
        gate.set()
        assert (await sidecar.acknowledgement()).generation == 2


async def test_a_callback_that_fails_is_not_acknowledged(
    sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture
) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)

    @app.on_assignment("orderSync")
    def on_assignment(assignment: sidekeeper.Assignment) -> None:
        if assignment.generation == 1:
            raise ValueError("not this one")

    async with serving(app):
        stream = await sidecar.stream()
        stream.assign([0], generation=2)
        assert (await sidecar.acknowledgement()).generation == 2
    assert any("a callback failed" in record.getMessage() for record in caplog.records)


async def test_attaches_again_after_each_end(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with serving(app):
        first = await sidecar.request()
        first.end(grpc.StatusCode.UNAVAILABLE, "no registry")
        second = await sidecar.stream()
        second.send(draining=attach_pb2.Draining())
        second.execute(0)
        await sidecar.result()
        second.end()
        third = await sidecar.stream()
        third.end(grpc.StatusCode.INVALID_ARGUMENT, "only a refusal before the instance is registered is final")
        fourth = await sidecar.stream()
        fourth.execute(0)
        assert (await sidecar.report()).attachment_id == fourth.attachment_id


async def test_a_sidecar_that_starts_late_and_restarts_is_found(tmp_path: Path) -> None:
    address = f"unix:{tmp_path / 'sidecar.sock'}"
    app = sidekeeper.Application(address)
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with serving(app):
        for _ in range(2):
            sidecar = FakeSidecar()
            await sidecar.start(address)
            stream = await sidecar.stream()
            stream.execute(0)
            await sidecar.result()
            await sidecar.stop()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "sidekeeper" and record.levelname == "WARNING"
    ]


class Said(logging.Handler):
    """What the library logs, as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.records: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put_nowait((record.levelname, record.getMessage()))

    async def until(self, level: str, start: str) -> list[tuple[str, str]]:
        """Waits for a record that begins so; returns all until then that say whether there is a sidecar."""
        records: list[tuple[str, str]] = []
        while not (records and records[-1][0] == level and records[-1][1].startswith(start)):
            records.append(await soon(self.records.get()))
        return [one for one in records if one[1].startswith(("no sidecar", "still no sidecar", "a sidecar"))]


async def test_that_no_sidecar_answers_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "sidekeeper")
    said = Said()
    logging.getLogger("sidekeeper").addHandler(said)
    address = f"unix:{tmp_path / 'sidecar.sock'}"
    app = sidekeeper.Application(address)
    app.job("orderSync", sharding_total_count=6)(ignore)
    app.job("billing", sharding_total_count=6)(ignore)
    try:
        async with serving(app):
            for _ in range(2):
                missing, *others = [one for _ in range(3) for one in await said.until("DEBUG", "still no sidecar")]
                text = f"no sidecar answers at {address}: is `sidekeeper serve` running there? (UNAVAILABLE: "
                assert missing[0] == "WARNING"
                assert missing[1].startswith(text)
                assert {level for level, _ in others} == {"DEBUG"}
                assert all(text.startswith(f"still no sidecar at {address}: UNAVAILABLE: ") for _, text in others)
                sidecar = FakeSidecar()
                await sidecar.start(address)
                first = await sidecar.request()
                first.end(grpc.StatusCode.UNAVAILABLE, "the registry does not answer", "REGISTRY_AWAY")
                found = await said.until("INFO", "a sidecar")  # a refusal is an answer, too
                assert found[-1] == ("INFO", f"a sidecar answers at {address}")
                await sidecar.stream()
                await sidecar.stream()
                assert await said.until("INFO", "attached as") == []
                await said.until("INFO", "attached as")
                await sidecar.stop()
    finally:
        logging.getLogger("sidekeeper").removeHandler(said)


async def test_what_is_waited_for_is_said_once(sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)

    def wait(stream: Stream, *reasons: str) -> None:
        for reason in reasons:
            stream.send(waiting=attach_pb2.Waiting(reason=reason))

    async with serving(app):
        first = await sidecar.request()
        wait(first, "the registry does not answer", "somebody has the name", "the registry does not answer")
        first.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "broken")
        second = await sidecar.request()
        wait(second, "the registry does not answer")
        second.send()  # an event of a newer sidecar
        second.attach()
        second.assign([0])
        assert (await sidecar.acknowledgement()).attachment_id == second.attachment_id
        expected = [
            "not attached to job orderSync yet: the registry does not answer",
            "not attached to job orderSync yet: somebody has the name",
            "the stream has ended: RESOURCE_EXHAUSTED: broken; attaching again",
        ]
        assert warnings(caplog) == expected
        # Another time it is news again.
        second.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "broken")
        third = await sidecar.request()
        wait(third, "somebody has the name")
        third.attach()
        third.assign([0])
        await sidecar.acknowledgement()
    assert warnings(caplog) == [*expected, expected[2], expected[1]]


async def test_an_execution_that_waits_is_not_refused_as_late(
    sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sidekeeper.attachment.FIRST_EVENT_TIMEOUT", 0.3)
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with serving(app):
        silent = await sidecar.request()
        await soon(silent.closed.wait())  # it has not said anything
        waiting = await sidecar.request()
        waiting.send(waiting=attach_pb2.Waiting(reason="somebody has the name"))
        await asyncio.sleep(0.5)  # the time that it would have had
        waiting.attach()
        waiting.assign([0])
        assert (await sidecar.acknowledgement()).attachment_id == waiting.attachment_id


async def test_each_problem_is_said_once(sidecar: FakeSidecar, caplog: pytest.LogCaptureFixture) -> None:
    app = sidekeeper.Application(sidecar.target)
    changes: asyncio.Queue[sidekeeper.JobChange] = asyncio.Queue()

    async def changed(change: sidekeeper.JobChange) -> None:
        changes.put_nowait(change)

    app.on_job_changed("orderSync")(changed)
    app.job("orderSync", sharding_total_count=6)(ignore)
    odd = job_pb2.Problem(path="/orderSync/config", message="odd")
    clock = job_pb2.Problem(message="the clocks differ", code="CLOCK_SKEW")

    async def tell(stream: Stream, *problems: job_pb2.Problem) -> None:
        stream.send(job_changed=attach_pb2.JobChanged(problems=problems))
        assert len((await soon(changes.get())).problems) == len(problems)

    async with serving(app):
        stream = await sidecar.stream()
        await tell(stream, odd)
        await tell(stream, odd, clock)
        assert warnings(caplog) == ["/orderSync/config: odd", "registry: the clocks differ (CLOCK_SKEW)"]
        stream.end(grpc.StatusCode.RESOURCE_EXHAUSTED, "broken")
        stream = await sidecar.stream()
        await tell(stream, odd, clock)
        assert len(warnings(caplog)) == 3  # and that the stream has ended
        await tell(stream, clock)
        await tell(stream, clock, odd)
        assert warnings(caplog)[3:] == ["/orderSync/config: odd"]


@pytest.mark.parametrize("odd", ["no attached", "nothing", "execution twice", "a time out of range"])
async def test_an_odd_stream_is_left_and_attached_again(
    sidecar: FakeSidecar, odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = sidekeeper.Application(sidecar.target)

    @app.job("orderSync", sharding_total_count=6)
    async def handler(execution: sidekeeper.Execution) -> None:
        await asyncio.Event().wait()

    async with serving(app):
        stream = await sidecar.request()
        if odd == "nothing":
            stream.end()
        elif odd == "no attached":
            stream.assign([0])
        else:
            stream.attach()
            stream.assign([0])
            if odd == "execution twice":
                stream.execute(0, execution_id="x")
                stream.execute(0, execution_id="x")
            else:
                stream.execute(0, scheduled_time={"seconds": 10**15})
        again = await sidecar.stream()
        await soon(stream.closed.wait())
        assert again.attachment_id != stream.attachment_id
    errors = [record.exc_info for record in caplog.records if record.name == "sidekeeper" and record.exc_info]
    assert [type(error[1]) for error in errors if error] == [ProtocolError]


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND],
)
async def test_a_refusal_ends_the_application_when_the_others_have_finished(
    sidecar: FakeSidecar, code: grpc.StatusCode
) -> None:
    app = sidekeeper.Application(sidecar.target)
    begun, gate, stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.job("good", sharding_total_count=6, concurrency=1)
    async def handler(execution: sidekeeper.Execution) -> None:
        begun.set()
        await gate.wait()

    @app.on_assignment("good")
    async def note(assignment: sidekeeper.Assignment) -> None:
        if assignment.reason is sidekeeper.AssignmentReason.DETACHED:
            stopping.set()

    app.job("bad", sharding_total_count=6)(ignore)
    async with serving(app) as running:
        streams = {stream.request.job_name: stream for stream in (await sidecar.request(), await sidecar.request())}
        good, bad = streams["good"], streams["bad"]
        good.attach()
        good.assign([0, 1])
        executions = [good.execute(0), good.execute(1)]
        await soon(begun.wait())
        bad.end(code, "cron: 'x' is not a schedule", "INVALID_REQUEST")
        await soon(stopping.wait())
        gate.set()
        results: list[completion_pb2.ExecutionResult] = []
        while len(results) < len(executions):
            results += (await sidecar.report()).results
        assert [one.execution_id for one in results] == executions
        assert {one.outcome for one in results} == {completion_pb2.EXECUTION_OUTCOME_SUCCESS}
        with pytest.raises(sidekeeper.AttachError, match=r"'bad'.*cron: 'x' is not a schedule") as caught:
            await soon(running)
        assert (caught.value.job_name, caught.value.code) == ("bad", code.name)
        assert caught.value.reason == "INVALID_REQUEST"
        await soon(good.closed.wait())


async def test_unix_sockets_are_called_localhost(tmp_path: Path) -> None:
    """The authority on a Unix socket; a server of the same library as the client would take any."""
    received = bytearray()
    found = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # empty SETTINGS: the client may go on
        while not found.is_set():
            data = await reader.read(4096)
            received.extend(data)
            if b"/sidekeeper.v1.ParticipantService/Attach" in received or not data:
                found.set()
        writer.close()

    path = tmp_path / "sidecar.sock"
    server = await asyncio.start_unix_server(serve, str(path))
    app = sidekeeper.Application(f"unix://{path}")
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with server, serving(app):
        await soon(found.wait())
    assert b"localhost" in received
    assert b"sidecar.sock" not in received


@pytest.mark.parametrize("reason", ["", "STOPPED_BY_OPERATOR", "JOB_REMOVED"])
async def test_an_operators_stop_ends_the_run(sidecar: FakeSidecar, reason: str) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with serving(app) as running:
        stream = await sidecar.stream()
        stream.end(grpc.StatusCode.FAILED_PRECONDITION, "an operator has removed the instance", reason)
        await soon(running)


async def test_another_reason_is_a_refusal_also_after_the_stream_was_attached(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with serving(app) as running:
        stream = await sidecar.stream()
        stream.end(grpc.StatusCode.FAILED_PRECONDITION, "its class is another", "JOB_CLASS_CONFLICT")
        with pytest.raises(sidekeeper.AttachError, match="its class is another") as caught:
            await soon(running)
    assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "JOB_CLASS_CONFLICT")


async def test_a_sidecar_from_before_levels_is_refused(sidecar: FakeSidecar) -> None:
    app = sidekeeper.Application(sidecar.target)
    app.job("orderSync", sharding_total_count=6)(ignore)
    async with serving(app) as running:
        (await sidecar.request()).attach(api_level=0)
        with pytest.raises(sidekeeper.AttachError, match="upgrade the sidecar") as caught:
            await soon(running)
    assert (caught.value.code, caught.value.reason) == ("FAILED_PRECONDITION", "SIDECAR_TOO_OLD")
