package sidekeepertest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// The limits of a sidecar.
	queueMax           = 1000
	nameBytesMax       = 200
	givenCharactersMax = 80
)

var applicationID = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,64}$`)

// outbox are the events of one stream, until they are sent. Its fields need a mutex of its service.
type outbox[E any] struct {
	events []*E
	over   bool
	err    error
	wake   chan struct{}
}

func newOutbox[E any]() outbox[E] {
	return outbox[E]{wake: make(chan struct{}, 1)}
}

func (o *outbox[E]) send(event *E) {
	o.events = append(o.events, event)
	o.rouse()
}

// close ends the stream, behind its events.
func (o *outbox[E]) close(err error) {
	o.over, o.err = true, err
	o.rouse()
}

// rouse wakes the goroutine that sends.
func (o *outbox[E]) rouse() {
	select {
	case o.wake <- struct{}{}:
	default: // it is to wake already
	}
}

// deliver sends the events until the stream ends.
func (o *outbox[E]) deliver(mu *sync.Mutex, out grpc.ServerStreamingServer[E]) error {
	for {
		select {
		case <-o.wake:
			events, over, err := o.take(mu)
			for _, event := range events {
				if err := out.Send(event); err != nil {
					return err
				}
			}
			if over {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}

// take returns what is to be sent, and whether the stream ends then.
func (o *outbox[E]) take(mu *sync.Mutex) ([]*E, bool, error) {
	mu.Lock()
	defer mu.Unlock()
	events := o.events
	o.events = nil
	return events, o.over, o.err
}

// violations are the wrong fields of a request.
type violations []*errdetails.BadRequest_FieldViolation

func (v *violations) add(field, given, allowed string) {
	if characters := []rune(given); len(characters) > givenCharactersMax {
		given = string(characters[:givenCharactersMax]) + "..."
	}
	*v = append(*v, &errdetails.BadRequest_FieldViolation{
		Field: field, Description: fmt.Sprintf("given `%s`; allowed: %s", given, allowed),
	})
}

// status returns the refusal. Nil: nothing is wrong.
func (v *violations) status() error {
	if len(*v) == 0 {
		return nil
	}
	var texts []string
	for _, one := range *v {
		texts = append(texts, one.GetField()+": "+one.GetDescription())
	}
	return refusal(codes.InvalidArgument, "INVALID_REQUEST", strings.Join(texts, "; "), *v...)
}

func refusal(code codes.Code, reason, text string, fields ...*errdetails.BadRequest_FieldViolation) error {
	info := &errdetails.ErrorInfo{Domain: "sidekeeper", Reason: reason}
	told, err := status.New(code, text).WithDetails(info, &errdetails.BadRequest{FieldViolations: fields})
	if err != nil {
		return status.Error(code, text)
	}
	return told.Err()
}

// pathOf returns the path of a request's lock or election, as a sidecar reads it. Those with names are below the root.
func pathOf(field string, given *sidekeeperv1.LockId, root string, wrong *violations) string {
	switch id := given.GetId().(type) {
	case *sidekeeperv1.LockId_Name:
		if !isNodeName(id.Name) || strings.HasPrefix(id.Name, "@-@") || len(id.Name) > nameBytesMax {
			wrong.add(field+".name", id.Name,
				"1 to 200 bytes without `/` and control characters, not `.` or `..`, and not `@-@` at the beginning")
		}
		return root + "/" + id.Name
	case *sidekeeperv1.LockId_Path:
		names := strings.Split(id.Path, "/")
		isPrivate := func(name string) bool { return !isNodeName(name) || strings.HasSuffix(name, "-sidekeeper") }
		if len(names) < 2 || names[0] != "" || slices.ContainsFunc(names[1:], isPrivate) {
			wrong.add(field+".path", id.Path, "a path like `/locks/bill`, not `/`, not in the namespace of the jobs, and not in a "+
				"sidecar's own root (for a node below `"+root+"` give `"+field+".name`)")
		}
		return id.Path
	default:
		wrong.add(field, "", "`"+field+".name` or `"+field+".path`")
		return ""
	}
}

func checkApplicationID(given string, wrong *violations) {
	if !applicationID.MatchString(given) {
		wrong.add("application_id", given, "at most 64 characters of [A-Za-z0-9_.-]")
	}
}

func isNodeName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.Contains(name, "/") && !strings.ContainsFunc(name, unicode.IsControl)
}
