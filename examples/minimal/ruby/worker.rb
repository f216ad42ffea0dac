# The minimal worker: it executes the items of one job, and ends its process as soon as another instance may own them.
$LOAD_PATH.unshift File.join(__dir__, "stubs")
require "sidekeeper/v1/participant_service_services_pb"
include Sidekeeper::V1

$stdout.sync = true
Thread.report_on_exception = false
ADDRESS = ENV.fetch("SIDEKEEPER_ENDPOINT", "http://127.0.0.1:7070").delete_prefix("http://")
AUTHORITY = { "grpc.default_authority" => "localhost" }
SIDECAR = ParticipantService::Stub.new(ADDRESS, :this_channel_is_insecure, channel_args: AUTHORITY)

# The application's own part, on a thread of its own.
def work(execution)
  puts "item #{execution.item} of #{execution.scheduled_time.seconds} begins, token #{execution.fencing_token}"
  sleep 1
  puts "item #{execution.item} of #{execution.scheduled_time.seconds} ends"
end

# Ends the process, with all that it executes and with its stream.
def stop(why, status = 1)
  puts "stops: #{why}"
  exit! status
end

class Cancelled < StandardError; end

def execute(execution)
  result = ExecutionResult.new(execution_id: execution.execution_id, outcome: :EXECUTION_OUTCOME_SUCCESS)
  begin
    Thread.handle_interrupt(Cancelled => :immediate) { work(execution) }
  rescue StandardError => error
    result.outcome = :EXECUTION_OUTCOME_FAILURE
    result.failure_message = error.full_message(highlight: false).scrub[0, 4000] # at most 16 KiB
  end
  SIDECAR.report_completion(ReportCompletionRequest.new(attachment_id: @attachment_id, results: [result]))
rescue StandardError => error
  stop error
end

# A clock that goes on while the machine sleeps: on macOS that is the monotonic one.
CLOCK = Process.const_defined?(:CLOCK_BOOTTIME) ? Process::CLOCK_BOOTTIME : Process::CLOCK_MONOTONIC
def now = Process.clock_gettime(CLOCK)

def check_lease = (stop "the lease is over" if now >= @lease_end)

# The lease counts from when it was asked for. A question that fails leaves it as it is.
def renew_lease(interval)
  asked = now
  request = RenewLeaseRequest.new(attachment_id: @attachment_id)
  lease = SIDECAR.renew_lease(request, deadline: Time.now + interval).remaining_lease
  @lease_end = lease ? asked + lease.seconds + lease.nanos / 1e9 : Float::INFINITY
end

def keep_lease(interval)
  renew_lease(interval)
  Thread.new { loop { sleep interval; begin renew_lease(interval) rescue GRPC::BadStatus end } }
  Thread.new { loop { sleep 0.1; check_lease } }
end

@running = {}
@lease_end = Float::INFINITY
trap("TERM") { stop "SIGTERM", 0 }
begin
  configuration = JobConfiguration.new(sharding_total_count: 4, cron: "0/2 * * * * ?")
  SIDECAR.attach(AttachRequest.new(job_name: "orderSync", configuration: configuration)).each do |event|
    case event.event
    when :attached
      @attachment_id = event.attached.attachment_id
      interval = event.attached.lease_renewal_interval or next # there is no lease
      keep_lease(interval.seconds + interval.nanos / 1e9)
    when :execute
      check_lease
      execution = event.execute
      @running.keep_if { |_, thread| thread.alive? }
      # A thread inherits from the one that starts it when it may be interrupted.
      Thread.handle_interrupt(Cancelled => :never) do
        @running[execution.execution_id] = Thread.new { execute(execution) }
      end
    when :cancel
      @running[event.cancel.execution_id]&.raise(Cancelled, event.cancel.reason.to_s)
    end
  end
  stop "the sidecar has ended the stream"
rescue GRPC::FailedPrecondition => error
  # An operator has stopped the instance: it is not to be started again.
  stop error, @attachment_id ? 0 : 1
rescue StandardError => error
  stop error
end
