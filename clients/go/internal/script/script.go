// Package script is a sidecar for the client's own tests: the participant and the job service, in this process, under
// the test's control.
package script

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// Patience is how long anything may take before a test has failed.
const Patience = 20 * time.Second

// queueMax is how many events of a kind may wait for a test to take them.
const queueMax = 1024

// ScheduledTime is for which instant executions are, unless a test says otherwise.
var ScheduledTime = time.Unix(1_700_000_000, 0).UTC()

// Receive takes what is bound to come.
func Receive[T any](t testing.TB, what string, channel <-chan T) T {
	t.Helper()
	select {
	case value := <-channel:
		return value
	case <-time.After(Patience):
		t.Fatalf("not within %v: %s", Patience, what)
		panic("unreachable")
	}
}

// Stream is one attachment, from the sidecar's side.
type Stream struct {
	Request      *sidekeeperv1.AttachRequest
	AttachmentID string
	InstanceID   string
	// APILevel is what Attach tells.
	APILevel uint32
	// Grace is what Attach tells.
	Grace time.Duration
	// Renewal is the interval that Attach tells. Zero: none.
	Renewal time.Duration
	// Closed is closed when the client has gone.
	Closed chan struct{}

	outgoing   chan *sidekeeperv1.AttachResponse
	ended      chan error
	executions int
}

// Attach registers the instance.
func (s *Stream) Attach(resumed ...string) {
	attached := &sidekeeperv1.Attached{
		AttachmentId:        s.AttachmentID,
		InstanceId:          s.InstanceID,
		JobName:             s.Request.GetJobName(),
		Configuration:       s.Request.GetConfiguration(),
		SidecarVersion:      "0.0.0",
		ApiLevel:            s.APILevel,
		ResumedExecutionIds: resumed,
		Grace:               durationpb.New(s.Grace),
	}
	if s.Renewal > 0 {
		attached.LeaseRenewalInterval = durationpb.New(s.Renewal)
	}
	s.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Attached{Attached: attached}})
}

// Send sends any event.
func (s *Stream) Send(event *sidekeeperv1.AttachResponse) {
	s.outgoing <- event
}

// Assign tells an assignment of these items.
func (s *Stream) Assign(generation int64, reason sidekeeperv1.AssignmentReason, items ...uint32) {
	assigned := make([]*sidekeeperv1.AssignedItem, len(items))
	for index, item := range items {
		assigned[index] = &sidekeeperv1.AssignedItem{
			Item: item, ItemParameter: proto.String("p" + strconv.Itoa(int(item))), FencingToken: 100 + int64(item),
		}
	}
	s.Told(generation, reason, assigned...)
}

// Told tells an assignment as it is given.
func (s *Stream) Told(generation int64, reason sidekeeperv1.AssignmentReason, items ...*sidekeeperv1.AssignedItem) {
	s.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_AssignmentChanged{
		AssignmentChanged: &sidekeeperv1.AssignmentChanged{
			Assignment: &sidekeeperv1.Assignment{Generation: generation, ShardingTotalCount: 6, Items: items},
			Reason:     reason,
		},
	}})
}

// Execute sends an Execute, and returns its execution id; change may say more of it.
func (s *Stream) Execute(item uint32, change ...func(*sidekeeperv1.Execute)) string {
	s.executions++
	message := &sidekeeperv1.Execute{
		ExecutionId:        s.AttachmentID + "-" + strconv.Itoa(s.executions),
		Item:               item,
		ShardingTotalCount: 6,
		Source:             sidekeeperv1.ExecutionSource_EXECUTION_SOURCE_SCHEDULE,
		JobName:            s.Request.GetJobName(),
		ScheduledTime:      timestamppb.New(ScheduledTime),
		FireTime:           timestamppb.New(ScheduledTime.Add(12 * time.Millisecond)),
	}
	for _, one := range change {
		one(message)
	}
	s.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Execute{Execute: message}})
	return message.GetExecutionId()
}

// Cancel tells an execution to stop.
func (s *Stream) Cancel(executionID string, reason sidekeeperv1.CancelReason) {
	s.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Cancel{
		Cancel: &sidekeeperv1.Cancel{ExecutionId: executionID, Reason: reason},
	}})
}

// End ends the stream from the sidecar's side, after what was sent.
func (s *Stream) End(code codes.Code, details string) {
	s.ended <- status.Error(code, details)
}

// Draining tells that no execution follows.
func (s *Stream) Draining() {
	s.Send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Draining{Draining: &sidekeeperv1.Draining{}}})
}

// Refused is a status as a sidecar gives it: with a reason, among other details.
func Refused(code codes.Code, details, reason string) error {
	told, err := status.New(code, details).WithDetails(
		&errdetails.BadRequest{},
		&errdetails.ErrorInfo{Domain: "other.example", Reason: "QUOTA"},
		&errdetails.ErrorInfo{Domain: "sidekeeper", Reason: reason},
	)
	if err != nil {
		panic(err)
	}
	return told.Err()
}

// Refuse ends the stream from the sidecar's side, with a reason.
func (s *Stream) Refuse(code codes.Code, details, reason string) {
	s.ended <- Refused(code, details, reason)
}

// Break ends the stream as a broken connection does, and waits until the client has noticed.
func (s *Stream) Break(t testing.TB) {
	t.Helper()
	s.End(codes.Unavailable, "broken")
	Receive(t, "the stream ends", s.Closed)
}

// Sidecar is the participant and the job service. A test takes its streams and reports from channels.
type Sidecar struct {
	sidekeeperv1.UnimplementedParticipantServiceServer
	sidekeeperv1.UnimplementedJobServiceServer

	// Endpoint is where it listens.
	Endpoint         string
	Streams          chan *Stream
	Reports          chan *sidekeeperv1.ReportCompletionRequest
	Acknowledgements chan *sidekeeperv1.AcknowledgeAssignmentRequest
	ListenerReports  chan *sidekeeperv1.ReportListenerRequest
	Drained          chan *sidekeeperv1.DrainAttachmentRequest
	Detached         chan *sidekeeperv1.DetachRequest
	Progress         chan *sidekeeperv1.ReportProgressRequest
	Triggered        chan string
	// The last trigger.
	trigger *sidekeeperv1.TriggerJobRequest
	// Renewals has how long applications were ready to wait when they asked for the lease.
	Renewals chan time.Duration
	// Headers has what came with the triggers.
	Headers chan metadata.MD

	mu              sync.Mutex
	attached        map[string]*Stream
	isOlder         bool
	holdsDrains     bool
	answer          func(context.Context, *sidekeeperv1.ReportCompletionRequest) error
	progressAnswers []any
	triggerAnswer   any
	grace           time.Duration
	renewal         time.Duration
	renewalAnswer   any
	count           int
	server          *grpc.Server
}

// Start starts a sidecar that ends with the test.
func Start(t testing.TB) *Sidecar {
	t.Helper()
	return StartAt(t, "127.0.0.1:0")
}

// StartAt starts one at an address: of TCP, or a Unix socket's absolute path.
func StartAt(t testing.TB, address string) *Sidecar {
	t.Helper()
	s := &Sidecar{
		Streams:          make(chan *Stream, queueMax),
		Reports:          make(chan *sidekeeperv1.ReportCompletionRequest, queueMax),
		Acknowledgements: make(chan *sidekeeperv1.AcknowledgeAssignmentRequest, queueMax),
		ListenerReports:  make(chan *sidekeeperv1.ReportListenerRequest, queueMax),
		Drained:          make(chan *sidekeeperv1.DrainAttachmentRequest, queueMax),
		Detached:         make(chan *sidekeeperv1.DetachRequest, queueMax),
		Progress:         make(chan *sidekeeperv1.ReportProgressRequest, queueMax),
		Triggered:        make(chan string, queueMax),
		Renewals:         make(chan time.Duration, queueMax),
		Headers:          make(chan metadata.MD, queueMax),
		triggerAnswer:    &sidekeeperv1.TriggerJobResponse{},
		attached:         map[string]*Stream{},
	}
	s.Serve(t, address)
	t.Cleanup(s.Stop)
	return s
}

// Serve listens, also again after Stop.
func (s *Sidecar) Serve(t testing.TB, address string) {
	t.Helper()
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoint = "http://" + listener.Addr().String()
	if network == "unix" {
		s.Endpoint = "unix://" + address
	}
	server := grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	sidekeeperv1.RegisterParticipantServiceServer(server, s)
	sidekeeperv1.RegisterJobServiceServer(server, s)
	s.mu.Lock()
	s.server = server
	s.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// Stop breaks all connections.
func (s *Sidecar) Stop() {
	s.mu.Lock()
	server := s.server
	s.mu.Unlock()
	server.Stop()
}

// AnswerReports decides how a report is answered; nil from it, and nil itself: as usual.
func (s *Sidecar) AnswerReports(answer func(context.Context, *sidekeeperv1.ReportCompletionRequest) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

// AnswerProgress says how reports of progress are answered, one after the other: responses or errors. Then well.
func (s *Sidecar) AnswerProgress(answers ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progressAnswers = answers
}

// TellGrace says how long instances stay without their streams, as the streams from now on are told.
func (s *Sidecar) TellGrace(grace time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grace = grace
}

// TellRenewal says how often applications without a shared clock ask for the lease, as the streams from now on are told.
func (s *Sidecar) TellRenewal(interval time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewal = interval
}

// AnswerRenewals says how that is answered: a response or an error.
func (s *Sidecar) AnswerRenewals(answer any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewalAnswer = answer
}

// Asked waits until the lease has been asked for so many times more.
func (s *Sidecar) Asked(t testing.TB, times int) {
	t.Helper()
	for range times {
		Receive(t, "a request for the lease", s.Renewals)
	}
}

// AnswerTriggers says how triggers are answered: a response or an error.
func (s *Sidecar) AnswerTriggers(answer any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.triggerAnswer = answer
}

// BeOlder has it not know DrainAttachment, as an older sidecar.
func (s *Sidecar) BeOlder() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isOlder = true
}

// HoldDrains has it answer DrainAttachment as a sidecar that is starting executions: the test says when that is over.
func (s *Sidecar) HoldDrains() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdsDrains = true
}

// Request waits for the next attachment, and leaves it unanswered.
func (s *Sidecar) Request(t testing.TB) *Stream {
	t.Helper()
	return Receive(t, "an attachment", s.Streams)
}

// Stream waits for the next attachment, and registers it with an assignment; no items: all six.
func (s *Sidecar) Stream(t testing.TB, items ...uint32) *Stream {
	t.Helper()
	stream := s.Request(t)
	stream.Attach()
	if len(items) == 0 {
		items = []uint32{0, 1, 2, 3, 4, 5}
	}
	stream.Assign(1, sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_ATTACHED, items...)
	return stream
}

// Report waits for the next report.
func (s *Sidecar) Report(t testing.TB) *sidekeeperv1.ReportCompletionRequest {
	t.Helper()
	return Receive(t, "a report", s.Reports)
}

// Result waits for a report of one result.
func (s *Sidecar) Result(t testing.TB) *sidekeeperv1.ExecutionResult {
	t.Helper()
	report := s.Report(t)
	if len(report.GetResults()) != 1 {
		t.Fatalf("%d results instead of one: %v", len(report.GetResults()), report)
	}
	return report.GetResults()[0]
}

// Acknowledgement waits for the next one.
func (s *Sidecar) Acknowledgement(t testing.TB) *sidekeeperv1.AcknowledgeAssignmentRequest {
	t.Helper()
	return Receive(t, "an acknowledgement", s.Acknowledgements)
}

// Attach is the participant service's.
func (s *Sidecar) Attach(request *sidekeeperv1.AttachRequest, out grpc.ServerStreamingServer[sidekeeperv1.AttachResponse]) error {
	s.mu.Lock()
	s.count++
	number, grace, renewal := strconv.Itoa(s.count), s.grace, s.renewal
	s.mu.Unlock()
	stream := &Stream{
		Request:      request,
		AttachmentID: "attachment-" + number,
		InstanceID:   "10.0.0.1@-@" + number,
		APILevel:     2,
		Grace:        grace,
		Renewal:      renewal,
		Closed:       make(chan struct{}),
		outgoing:     make(chan *sidekeeperv1.AttachResponse, queueMax),
		ended:        make(chan error, 1),
	}
	s.mu.Lock()
	s.attached[stream.AttachmentID] = stream
	s.mu.Unlock()
	defer close(stream.Closed)
	s.Streams <- stream
	for {
		select {
		case event := <-stream.outgoing:
			if err := out.Send(event); err != nil {
				return err
			}
		case ended := <-stream.ended:
			for len(stream.outgoing) > 0 {
				if err := out.Send(<-stream.outgoing); err != nil {
					return err
				}
			}
			return ended
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

// ReportCompletion is the participant service's.
func (s *Sidecar) ReportCompletion(ctx context.Context, request *sidekeeperv1.ReportCompletionRequest) (*sidekeeperv1.ReportCompletionResponse, error) {
	s.Reports <- request
	s.mu.Lock()
	answer := s.answer
	s.mu.Unlock()
	if answer != nil {
		if err := answer(ctx, request); err != nil {
			return nil, err
		}
	}
	response := &sidekeeperv1.ReportCompletionResponse{}
	for _, result := range request.GetResults() {
		response.Records = append(response.Records, &sidekeeperv1.CompletionRecord{
			ExecutionId: result.GetExecutionId(),
			Status:      sidekeeperv1.CompletionStatus_COMPLETION_STATUS_RECORDED,
		})
	}
	return response, nil
}

// AcknowledgeAssignment is the participant service's.
func (s *Sidecar) AcknowledgeAssignment(_ context.Context, request *sidekeeperv1.AcknowledgeAssignmentRequest) (*sidekeeperv1.AcknowledgeAssignmentResponse, error) {
	s.Acknowledgements <- request
	return &sidekeeperv1.AcknowledgeAssignmentResponse{}, nil
}

// ReportProgress is the participant service's.
func (s *Sidecar) ReportProgress(_ context.Context, request *sidekeeperv1.ReportProgressRequest) (*sidekeeperv1.ReportProgressResponse, error) {
	s.Progress <- request
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.progressAnswers) == 0 {
		return &sidekeeperv1.ReportProgressResponse{}, nil
	}
	answer := s.progressAnswers[0]
	s.progressAnswers = s.progressAnswers[1:]
	if err, failed := answer.(error); failed {
		return nil, err
	}
	return answer.(*sidekeeperv1.ReportProgressResponse), nil
}

// RenewLease is the participant service's.
func (s *Sidecar) RenewLease(ctx context.Context, _ *sidekeeperv1.RenewLeaseRequest) (*sidekeeperv1.RenewLeaseResponse, error) {
	deadline, _ := ctx.Deadline()
	s.Renewals <- time.Until(deadline)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err, failed := s.renewalAnswer.(error); failed {
		return nil, err
	}
	return s.renewalAnswer.(*sidekeeperv1.RenewLeaseResponse), nil
}

// ReportListener is the participant service's.
func (s *Sidecar) ReportListener(_ context.Context, request *sidekeeperv1.ReportListenerRequest) (*sidekeeperv1.ReportListenerResponse, error) {
	s.ListenerReports <- request
	return &sidekeeperv1.ReportListenerResponse{InTime: true}, nil
}

// DrainAttachment is the participant service's.
func (s *Sidecar) DrainAttachment(ctx context.Context, request *sidekeeperv1.DrainAttachmentRequest) (*sidekeeperv1.DrainAttachmentResponse, error) {
	s.mu.Lock()
	stream, isOlder, holds := s.attached[request.GetAttachmentId()], s.isOlder, s.holdsDrains
	s.mu.Unlock()
	if isOlder {
		return s.UnimplementedParticipantServiceServer.DrainAttachment(ctx, request)
	}
	s.Drained <- request
	if !holds {
		stream.Draining()
	}
	return &sidekeeperv1.DrainAttachmentResponse{}, nil
}

// Detach is the participant service's.
func (s *Sidecar) Detach(_ context.Context, request *sidekeeperv1.DetachRequest) (*sidekeeperv1.DetachResponse, error) {
	s.Detached <- request
	return &sidekeeperv1.DetachResponse{}, nil
}

// LastTrigger is the last request of a trigger.
func (s *Sidecar) LastTrigger() *sidekeeperv1.TriggerJobRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trigger
}

// TriggerJob is the job service's.
func (s *Sidecar) TriggerJob(ctx context.Context, request *sidekeeperv1.TriggerJobRequest) (*sidekeeperv1.TriggerJobResponse, error) {
	s.Triggered <- request.GetJobName()
	headers, _ := metadata.FromIncomingContext(ctx)
	s.Headers <- headers
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trigger = request
	if err, failed := s.triggerAnswer.(error); failed {
		return nil, err
	}
	return s.triggerAnswer.(*sidekeeperv1.TriggerJobResponse), nil
}
