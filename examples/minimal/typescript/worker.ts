// The minimal worker: it executes the items of one job, and ends its process as soon as another instance may own them.
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { uptime } from "node:os"; // a clock that goes on while the machine sleeps; before Node 20 in whole seconds only
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

const address = (process.env.SIDEKEEPER_ENDPOINT ?? "http://127.0.0.1:7070").replace("http://", "");
const includeDirs = [join(__dirname, "../../../../proto")];
const file = loadSync("sidekeeper/v1/participant_service.proto", { includeDirs, defaults: true, enums: String, oneofs: true });
const { ParticipantService } = (grpc.loadPackageDefinition(file) as any).sidekeeper.v1;
const sidecar = new ParticipantService(address, grpc.credentials.createInsecure());
const renew = promisify(sidecar.renewLease).bind(sidecar);
const report = promisify(sidecar.reportCompletion).bind(sidecar);

const running = new Map<string, AbortController>();
let attachmentId = "";
let leaseEnd = Infinity;

// The application's own part. It must not block the process: the worker cannot stop an execution that does.
async function work(execution: any, signal: AbortSignal): Promise<void> {
  console.log(`item ${execution.item} of ${execution.scheduledTime.seconds} begins, token ${execution.fencingToken}`);
  await sleep(1000, undefined, { signal });
  console.log(`item ${execution.item} of ${execution.scheduledTime.seconds} ends`);
}

// Ends the process, with all that it executes and with its stream.
function stop(why: unknown, status = 1): never {
  console.log(`stops: ${why}`);
  process.exit(status);
}

async function execute(execution: any): Promise<void> {
  const { executionId } = execution;
  const cancelled = new AbortController();
  running.set(executionId, cancelled);
  const result = { executionId, outcome: "EXECUTION_OUTCOME_SUCCESS", failureMessage: "" };
  try {
    await work(execution, cancelled.signal);
  } catch (error) {
    result.outcome = "EXECUTION_OUTCOME_FAILURE";
    result.failureMessage = String(error).slice(0, 4000); // at most 16 KiB
  }
  running.delete(executionId);
  await report({ attachmentId, results: [result] });
}

// The lease counts from when it was asked for. A question that fails leaves it as it is.
async function renewLease(): Promise<void> {
  const asked = uptime();
  const { remainingLease } = await renew({ attachmentId });
  leaseEnd = remainingLease ? asked + seconds(remainingLease) : Infinity;
}

const seconds = (duration: any) => Number(duration.seconds) + duration.nanos / 1e9;
const checkLease = () => uptime() < leaseEnd || stop("the lease is over");

async function run(): Promise<void> {
  const configuration = { shardingTotalCount: 4, cron: "0/2 * * * * ?" };
  for await (const event of sidecar.attach({ jobName: "orderSync", configuration })) {
    if (event.attached) {
      attachmentId = event.attached.attachmentId;
      const interval = event.attached.leaseRenewalInterval;
      if (!interval) continue; // there is no lease
      await renewLease();
      setInterval(() => renewLease().catch(() => {}), seconds(interval) * 1000);
      setInterval(checkLease, 100);
    } else if (event.execute) {
      checkLease();
      execute(event.execute).catch(stop);
    } else if (event.cancel) {
      running.get(event.cancel.executionId)?.abort();
    }
  }
}

process.on("SIGTERM", () => stop("SIGTERM", 0));
run().then(
  () => stop("the sidecar has ended the stream"),
  // An operator has stopped the instance: it is not to be started again.
  (error) => stop(error, attachmentId && error.code === grpc.status.FAILED_PRECONDITION ? 0 : 1),
);
