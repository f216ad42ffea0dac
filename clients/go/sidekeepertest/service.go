package sidekeepertest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

// eventsMax is how many events may wait for the application to read them.
const eventsMax = 1024

// service is the participant service in memory.
type service struct {
	sidekeeperv1.UnimplementedParticipantServiceServer
	notifier

	mu      sync.Mutex
	streams map[string]*stream // the last one of each job
	count   int64
}

func newService() *service {
	return &service{streams: map[string]*stream{}}
}

// next returns a number that it has not returned before.
func (s *service) next() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	return s.count
}

// stream returns the last stream of a job. Nil: there is none.
func (s *service) stream(job string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams[job]
}

// attachment returns the stream of this name.
func (s *service) attachment(id string) (*stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.streams {
		if one.attachmentID == id {
			return one, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "attachment %q: there is none of this name", id)
}

// Attach is the participant service's.
func (s *service) Attach(request *sidekeeperv1.AttachRequest, out grpc.ServerStreamingServer[sidekeeperv1.AttachResponse]) error {
	configuration := request.GetConfiguration()
	if configuration == nil {
		configuration = &sidekeeperv1.JobConfiguration{ShardingTotalCount: 1}
	}
	number := s.next()
	one := &stream{
		service: s, configuration: configuration,
		attachmentID: fmt.Sprintf("attachment-%d", number), instanceID: fmt.Sprintf("10.0.0.1@-@test-%d", number),
		events: make(chan *sidekeeperv1.AttachResponse, eventsMax), over: make(chan error, 1),
		running: map[string]*Running{}, tokens: map[uint32]int64{},
	}
	one.send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Attached{Attached: &sidekeeperv1.Attached{
		AttachmentId:   one.attachmentID,
		InstanceId:     one.instanceID,
		JobName:        request.GetJobName(),
		Configuration:  configuration,
		SidecarVersion: sidekeeper.Version,
		ApiLevel:       request.GetApiLevel(),
	}}})
	items := make([]int, configuration.GetShardingTotalCount())
	for item := range items {
		items[item] = item
	}
	one.assign(sidekeeperv1.AssignmentReason_ASSIGNMENT_REASON_ATTACHED, items)
	s.mu.Lock()
	s.streams[request.GetJobName()] = one
	s.mu.Unlock()
	s.changed()
	for {
		select {
		case event := <-one.events:
			if err := out.Send(event); err != nil {
				return err
			}
		case err := <-one.over:
			return err
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

// ReportCompletion is the participant service's.
func (s *service) ReportCompletion(_ context.Context, request *sidekeeperv1.ReportCompletionRequest) (*sidekeeperv1.ReportCompletionResponse, error) {
	stream, err := s.attachment(request.GetAttachmentId())
	if err != nil {
		return nil, err
	}
	response := &sidekeeperv1.ReportCompletionResponse{}
	for _, result := range request.GetResults() {
		response.Records = append(response.Records, &sidekeeperv1.CompletionRecord{
			ExecutionId: result.GetExecutionId(), Status: stream.complete(result),
		})
	}
	s.changed()
	return response, nil
}

// ReportProgress is the participant service's.
func (s *service) ReportProgress(_ context.Context, request *sidekeeperv1.ReportProgressRequest) (*sidekeeperv1.ReportProgressResponse, error) {
	stream, err := s.attachment(request.GetAttachmentId())
	if err != nil {
		return nil, err
	}
	running := stream.find(request.GetExecutionId())
	if running == nil {
		return nil, status.Errorf(codes.NotFound, "execution %q: there is none of this name", request.GetExecutionId())
	}
	return running.progress(request), nil
}

// AcknowledgeAssignment is the participant service's.
func (s *service) AcknowledgeAssignment(_ context.Context, request *sidekeeperv1.AcknowledgeAssignmentRequest) (*sidekeeperv1.AcknowledgeAssignmentResponse, error) {
	stream, err := s.attachment(request.GetAttachmentId())
	if err != nil {
		return nil, err
	}
	stream.acknowledge(request.GetGeneration())
	s.changed()
	return &sidekeeperv1.AcknowledgeAssignmentResponse{}, nil
}

// ReportListener is the participant service's.
func (s *service) ReportListener(context.Context, *sidekeeperv1.ReportListenerRequest) (*sidekeeperv1.ReportListenerResponse, error) {
	return &sidekeeperv1.ReportListenerResponse{InTime: true}, nil
}

// DrainAttachment is the participant service's.
func (s *service) DrainAttachment(_ context.Context, request *sidekeeperv1.DrainAttachmentRequest) (*sidekeeperv1.DrainAttachmentResponse, error) {
	stream, err := s.attachment(request.GetAttachmentId())
	if err != nil {
		return nil, err
	}
	stream.send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_Draining{Draining: &sidekeeperv1.Draining{}}})
	return &sidekeeperv1.DrainAttachmentResponse{}, nil
}

// Detach is the participant service's.
func (s *service) Detach(context.Context, *sidekeeperv1.DetachRequest) (*sidekeeperv1.DetachResponse, error) {
	return &sidekeeperv1.DetachResponse{}, nil
}

// stream is one attachment.
type stream struct {
	service       *service
	configuration *sidekeeperv1.JobConfiguration
	attachmentID  string
	instanceID    string
	events        chan *sidekeeperv1.AttachResponse
	over          chan error

	mu           sync.Mutex
	running      map[string]*Running
	tokens       map[uint32]int64
	generation   int64
	acknowledged int64
}

func (s *stream) send(event *sidekeeperv1.AttachResponse) {
	s.events <- event
}

func (s *stream) end(code codes.Code, details string) {
	s.over <- status.Error(code, details)
}

// assign sends an assignment of exactly these items, and returns the generation.
func (s *stream) assign(reason sidekeeperv1.AssignmentReason, items []int) int64 {
	s.mu.Lock()
	s.generation++
	assignment := &sidekeeperv1.Assignment{
		Generation: s.generation, ShardingTotalCount: s.configuration.GetShardingTotalCount(),
	}
	changed := &sidekeeperv1.AssignmentChanged{Assignment: assignment, Reason: reason, Leader: true}
	before := s.tokens
	s.tokens = map[uint32]int64{}
	for _, number := range slices.Sorted(slices.Values(items)) {
		item := uint32(number)
		token, had := before[item]
		if !had {
			token = s.service.next()
			changed.AddedItems = append(changed.AddedItems, item)
		}
		s.tokens[item] = token
		delete(before, item)
		assignment.Items = append(assignment.Items, &sidekeeperv1.AssignedItem{Item: item, FencingToken: token})
	}
	for item := range before {
		changed.RevokedItems = append(changed.RevokedItems, item)
	}
	slices.Sort(changed.RevokedItems)
	generation := s.generation
	s.mu.Unlock()
	s.send(&sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_AssignmentChanged{AssignmentChanged: changed}})
	return generation
}

func (s *stream) acknowledge(generation int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acknowledged = max(s.acknowledged, generation)
}

func (s *stream) acknowledgedGeneration() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acknowledged
}

func (s *stream) open(running *Running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[running.ID] = running
}

func (s *stream) find(id string) *Running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[id]
}

// openExecutions returns the executions that are not reported yet.
func (s *stream) openExecutions() []*Running {
	s.mu.Lock()
	defer s.mu.Unlock()
	var open []*Running
	for _, running := range s.running {
		if running.reported() == nil {
			open = append(open, running)
		}
	}
	return open
}

func (s *stream) complete(result *sidekeeperv1.ExecutionResult) sidekeeperv1.CompletionStatus {
	running := s.find(result.GetExecutionId())
	switch {
	case running == nil:
		return sidekeeperv1.CompletionStatus_COMPLETION_STATUS_LEASE_LOST
	case running.reported() != nil:
		return sidekeeperv1.CompletionStatus_COMPLETION_STATUS_ALREADY_RECORDED
	}
	running.end(proto.CloneOf(result))
	return sidekeeperv1.CompletionStatus_COMPLETION_STATUS_RECORDED
}

func sessionChanged(state sidekeeperv1.SessionState) *sidekeeperv1.AttachResponse {
	return &sidekeeperv1.AttachResponse{Event: &sidekeeperv1.AttachResponse_SessionChanged{
		SessionChanged: &sidekeeperv1.SessionChanged{State: state},
	}}
}
