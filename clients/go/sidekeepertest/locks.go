package sidekeepertest

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	sidekeeperv1 "github.com/sidekeeper/sidekeeper/clients/go/proto/sidekeeper/v1"
)

const (
	// lockRoot is where the locks with names are.
	lockRoot = "/test-sidekeeper/@-@locks/queues"
	// lockLease is longer than any test: no lease is renewed.
	lockLease = time.Hour

	// The limits of a sidecar.
	holderBytesMax = 255
	limitMax       = 365 * 24 * time.Hour
	holdMin        = time.Millisecond
	lockDelayMax   = 10 * time.Minute
	pageDefault    = 100
	pageMax        = 1000
)

// permitsMax is the most permits of a semaphore.
const permitsMax = 1000

var lockMarks = map[sidekeeperv1.LockMode]string{
	sidekeeperv1.LockMode_LOCK_MODE_MUTEX: "lock-",
	sidekeeperv1.LockMode_LOCK_MODE_READ:  "__READ__",
	sidekeeperv1.LockMode_LOCK_MODE_WRITE: "__WRIT__",

	sidekeeperv1.LockMode_LOCK_MODE_SEMAPHORE: "lock-",
}

var whyLost = map[LockLoss]string{
	LockLeaseLost:   "the session with the registry could not be proven alive in time, or has ended",
	LockRevoked:     "its node was deleted",
	LockHoldTimeout: "hold_timeout was over",
	LockDraining:    "the sidecar is stopping",
}

// locks is the lock service in memory.
type locks struct {
	sidekeeperv1.UnimplementedLockServiceServer
	// changed is called after each change.
	changed func()

	mu sync.Mutex
	// Contenders of all locks, in their order.
	contenders []*hold
	count      int64
	suspended  bool
	lease      time.Duration
}

func newLocks(changed func()) *locks {
	return &locks{changed: changed, lease: lockLease}
}

// hold is one contender. Its fields need the mutex of the locks.
type hold struct {
	id        string
	path      string
	request   *sidekeeperv1.HoldRequest
	contender *sidekeeperv1.Contender
	holds     bool
	// Its place and the first contender, as it has heard of them.
	position int
	first    *hold
	timer    *time.Timer

	outbox[sidekeeperv1.HoldResponse]
}

// Hold is the lock service's.
func (l *locks) Hold(request *sidekeeperv1.HoldRequest, out grpc.ServerStreamingServer[sidekeeperv1.HoldResponse]) error {
	one, err := l.enter(proto.CloneOf(request))
	if err != nil {
		return err
	}
	defer l.leave(one)
	return one.deliver(&l.mu, out)
}

// Release is the lock service's.
func (l *locks) Release(_ context.Context, request *sidekeeperv1.ReleaseRequest) (*sidekeeperv1.ReleaseResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.contenders {
		if one.id == request.GetHoldId() {
			one.send(&sidekeeperv1.HoldResponse{Event: &sidekeeperv1.HoldResponse_Released{Released: &sidekeeperv1.LockReleased{}}})
			l.end(one, nil)
			return &sidekeeperv1.ReleaseResponse{}, nil
		}
	}
	return nil, refusal(codes.NotFound, "HOLD_UNKNOWN",
		fmt.Sprintf("this sidecar has no hold `%s`: it has ended, or another sidecar has it", request.GetHoldId()))
}

// GetLock is the lock service's.
func (l *locks) GetLock(_ context.Context, request *sidekeeperv1.GetLockRequest) (*sidekeeperv1.GetLockResponse, error) {
	var wrong violations
	lock := &sidekeeperv1.Lock{Path: pathOf("lock", request.GetLock(), lockRoot, &wrong)}
	if err := wrong.status(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, one := range l.queue(lock.GetPath()) {
		if one.holds {
			lock.Holders = append(lock.Holders, one.contender)
		} else {
			lock.Waiting = append(lock.Waiting, one.contender)
		}
	}
	return &sidekeeperv1.GetLockResponse{Lock: lock}, nil
}

// ListLocks is the lock service's.
func (l *locks) ListLocks(_ context.Context, request *sidekeeperv1.ListLocksRequest) (*sidekeeperv1.ListLocksResponse, error) {
	if request.GetPageSize() > pageMax {
		var wrong violations
		wrong.add("page_size", fmt.Sprint(request.GetPageSize()), "0 to 1000")
		return nil, wrong.status()
	}
	size := int(cmp.Or(request.GetPageSize(), pageDefault))
	l.mu.Lock()
	defer l.mu.Unlock()
	var names []string
	for _, one := range l.contenders {
		if name := one.request.GetLock().GetName(); name > request.GetPageToken() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	response := &sidekeeperv1.ListLocksResponse{Names: names[:min(size, len(names))]}
	if len(names) > size {
		response.NextPageToken = names[size-1]
	}
	return response, nil
}

// RequestRevocation is the lock service's.
func (l *locks) RequestRevocation(_ context.Context, request *sidekeeperv1.RequestRevocationRequest) (*sidekeeperv1.RequestRevocationResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	holders, err := l.holders(request.GetLock())
	if err != nil {
		return nil, err
	}
	holders[0].send(&sidekeeperv1.HoldResponse{
		Event: &sidekeeperv1.HoldResponse_RevocationRequested{RevocationRequested: &sidekeeperv1.RevocationRequested{}},
	})
	return &sidekeeperv1.RequestRevocationResponse{Holder: holders[0].contender}, nil
}

// takeAway takes a lock from its holders.
func (l *locks) takeAway(lock *sidekeeperv1.LockId, loss LockLoss) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	holders, err := l.holders(lock)
	for _, holder := range holders {
		l.lose(holder, loss)
	}
	return err
}

// suspend acts as a registry that does not answer.
func (l *locks) suspend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suspended = true
	for _, one := range l.contenders {
		if one.holds {
			one.send(&sidekeeperv1.HoldResponse{Event: &sidekeeperv1.HoldResponse_Suspended{Suspended: l.leaseNow()}})
		}
	}
}

// resume acts as a registry that answers again.
func (l *locks) resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suspended = false
	for _, one := range l.contenders {
		if one.holds {
			one.send(&sidekeeperv1.HoldResponse{Event: &sidekeeperv1.HoldResponse_Resumed{Resumed: l.leaseNow()}})
		}
	}
	for _, one := range l.contenders {
		l.settle(one.path)
	}
}

func (l *locks) setLease(lease time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
}

// enter takes a hold into the queue of its lock.
func (l *locks) enter(request *sidekeeperv1.HoldRequest) (*hold, error) {
	request.Mode = cmp.Or(request.GetMode(), sidekeeperv1.LockMode_LOCK_MODE_MUTEX)
	path, err := checkHold(request)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.queue(path)
	for _, one := range queue {
		if id := request.GetApplicationId(); id != "" && one.request.GetApplicationId() == id {
			return nil, refusal(codes.FailedPrecondition, "LOCK_HELD_ALREADY", fmt.Sprintf(
				"this application holds the lock %s already, or waits for it: it would wait for itself; release that hold first", path))
		}
	}
	for _, one := range queue {
		if lockKind(one.request.GetMode()) != lockKind(request.GetMode()) {
			return nil, refusal(codes.FailedPrecondition, "LOCK_OF_OTHER_KIND", fmt.Sprintf(
				"the lock %s is in use by contenders of another kind (`%s`), which this one would not exclude; use the same `mode`, or another lock",
				path, one.contender.GetNodeName()))
		}
	}
	if len(queue) >= queueMax {
		return nil, refusal(codes.ResourceExhausted, "TOO_MANY", fmt.Sprintf(
			"the lock %s has %d contenders, which is the most; try later, or use several locks", path, len(queue)))
	}
	l.count++
	one := &hold{id: rand.Text(), path: path, request: request, outbox: newOutbox[sidekeeperv1.HoldResponse]()}
	one.contender = &sidekeeperv1.Contender{
		NodeName:     fmt.Sprintf("_c_%s-%s%010d", rand.Text(), lockMarks[request.GetMode()], l.count),
		Holder:       cmp.Or(request.GetHolder(), fmt.Sprintf("10.0.0.1@-@test-%d", l.count)),
		Mode:         request.GetMode(),
		FencingToken: l.count,
	}
	if request.GetMode() == sidekeeperv1.LockMode_LOCK_MODE_SEMAPHORE {
		one.contender.NodeName = "locks/" + one.contender.NodeName
	}
	l.contenders = append(l.contenders, one)
	one.send(&sidekeeperv1.HoldResponse{
		Event: &sidekeeperv1.HoldResponse_Started{Started: &sidekeeperv1.HoldStarted{HoldId: one.id, Path: path}},
	})
	l.settle(path)
	switch wait := request.GetWaitTimeout(); {
	case one.holds || wait == nil:
	case wait.AsDuration() == 0:
		l.giveUp(one)
	default:
		l.after(one, wait.AsDuration(), l.giveUp)
	}
	return one, nil
}

// leave is called when the stream has ended.
func (l *locks) leave(one *hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(one, nil)
}

// All of the following needs the mutex.

func (l *locks) queue(path string) []*hold {
	var queue []*hold
	for _, one := range l.contenders {
		if one.path == path {
			queue = append(queue, one)
		}
	}
	return queue
}

func (l *locks) holders(lock *sidekeeperv1.LockId) ([]*hold, error) {
	var wrong violations
	path := pathOf("lock", lock, lockRoot, &wrong)
	if err := wrong.status(); err != nil {
		return nil, err
	}
	holders := slices.DeleteFunc(l.queue(path), func(one *hold) bool { return !one.holds })
	if len(holders) == 0 {
		return nil, refusal(codes.NotFound, "LOCK_FREE", fmt.Sprintf("nobody holds the lock %s", path))
	}
	return holders, nil
}

// settle gives a lock to the contenders whose turn it is, and tells the others their places.
func (l *locks) settle(path string) {
	defer l.changed()
	if l.suspended {
		return
	}
	queue := l.queue(path)
	for place, one := range queue {
		if one.holds {
			continue
		}
		ahead, blocked := aheadOf(queue, place)
		position := place
		if one.request.GetMode() == sidekeeperv1.LockMode_LOCK_MODE_SEMAPHORE {
			// Behind those that wait; the first of them waits for a permit.
			position = len(slices.DeleteFunc(slices.Clone(ahead), func(other *hold) bool { return other.holds }))
		}
		switch {
		case blocked && (one.first != ahead[0] || one.position != position):
			one.first, one.position = ahead[0], position
			first := proto.CloneOf(ahead[0].contender)
			first.FencingToken = 0
			one.send(&sidekeeperv1.HoldResponse{Event: &sidekeeperv1.HoldResponse_Waiting{
				Waiting: &sidekeeperv1.LockWaiting{Position: uint32(position), First: first},
			}})
		case !blocked:
			l.acquire(one)
		}
	}
}

// aheadOf returns the contenders that one at this place of the queue waits for, the first of them first, and whether it has to.
func aheadOf(queue []*hold, place int) ([]*hold, bool) {
	one, ahead := queue[place], queue[:place]
	if one.request.GetMode() == sidekeeperv1.LockMode_LOCK_MODE_SEMAPHORE {
		waiting := slices.DeleteFunc(slices.Clone(ahead), func(other *hold) bool { return other.holds })
		if len(waiting) > 0 {
			return waiting, true
		}
		holders := slices.DeleteFunc(slices.Clone(queue), func(other *hold) bool { return !other.holds })
		return holders, len(holders) >= int(one.request.GetPermits())
	}
	read := sidekeeperv1.LockMode_LOCK_MODE_READ
	return ahead, slices.ContainsFunc(ahead, func(other *hold) bool {
		return one.request.GetMode() != read || other.request.GetMode() != read
	})
}

// lockKind tells modes that exclude each other from those that do not.
func lockKind(mode sidekeeperv1.LockMode) sidekeeperv1.LockMode {
	if mode == sidekeeperv1.LockMode_LOCK_MODE_WRITE {
		return sidekeeperv1.LockMode_LOCK_MODE_READ
	}
	return mode
}

func (l *locks) acquire(one *hold) {
	one.holds = true
	one.stopTimer()
	if one.request.GetMode() == sidekeeperv1.LockMode_LOCK_MODE_SEMAPHORE {
		// The permit has a node of its own.
		l.count++
		one.contender.FencingToken = l.count
		one.contender.NodeName = fmt.Sprintf("leases/_c_%s-lease-%010d", rand.Text(), l.count)
	}
	one.send(&sidekeeperv1.HoldResponse{Event: &sidekeeperv1.HoldResponse_Acquired{Acquired: &sidekeeperv1.LockAcquired{
		FencingToken: one.contender.GetFencingToken(),
		NodePath:     one.path + "/" + one.contender.GetNodeName(),
		Lease:        l.leaseNow(),
	}}})
	if limit := one.request.GetHoldTimeout(); limit != nil {
		l.after(one, limit.AsDuration(), func(late *hold) { l.lose(late, LockHoldTimeout) })
	}
}

// giveUp ends a hold whose time to wait is over.
func (l *locks) giveUp(one *hold) {
	if one.holds {
		return
	}
	text := fmt.Sprintf("the lock %s was not free within wait_timeout", one.path)
	queue := l.queue(one.path)
	if ahead, _ := aheadOf(queue, slices.Index(queue, one)); len(ahead) == 0 {
		text += ", or the registry did not answer"
	} else {
		first := ahead[0]
		text += fmt.Sprintf("; `%s` of `%s` is first", first.contender.GetNodeName(), first.contender.GetHolder())
	}
	l.end(one, refusal(codes.DeadlineExceeded, "LOCK_NOT_FREE", text))
}

func (l *locks) lose(one *hold, loss LockLoss) {
	one.send(&sidekeeperv1.HoldResponse{
		Event: &sidekeeperv1.HoldResponse_Lost{Lost: &sidekeeperv1.LockLost{Reason: sidekeeperv1.LockLossReason(loss)}},
	})
	l.end(one, refusal(codes.Aborted, "LOCK_LOST", fmt.Sprintf("the lock %s is lost: %s", one.path, whyLost[loss])))
}

// end ends a hold that has not ended, behind its events.
func (l *locks) end(one *hold, err error) {
	index := slices.Index(l.contenders, one)
	if index < 0 {
		return
	}
	l.contenders = slices.Delete(l.contenders, index, index+1)
	one.stopTimer()
	one.close(err)
	l.settle(one.path)
}

func (l *locks) after(one *hold, limit time.Duration, call func(*hold)) {
	one.timer = time.AfterFunc(limit, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if slices.Contains(l.contenders, one) {
			call(one)
		}
	})
}

func (l *locks) leaseNow() *sidekeeperv1.LockLease {
	return &sidekeeperv1.LockLease{RemainingLease: durationpb.New(l.lease)}
}

func (h *hold) stopTimer() {
	if h.timer != nil {
		h.timer.Stop()
	}
}

// checkHold refuses what a sidecar refuses. It returns the lock's path.
func checkHold(request *sidekeeperv1.HoldRequest) (string, error) {
	var wrong violations
	if _, known := lockMarks[request.GetMode()]; !known {
		wrong.add("mode", fmt.Sprint(int32(request.GetMode())), "MUTEX, READ, WRITE or SEMAPHORE")
	}
	switch permits := request.GetPermits(); {
	case request.GetMode() == sidekeeperv1.LockMode_LOCK_MODE_SEMAPHORE:
		if permits < 1 || permits > permitsMax {
			wrong.add("permits", fmt.Sprint(permits), "1 to 1000")
		}
	case permits > 0:
		wrong.add("permits", fmt.Sprint(permits), "0: only a semaphore has permits")
	}
	path := pathOf("lock", request.GetLock(), lockRoot, &wrong)
	if wait := request.GetWaitTimeout(); wait != nil && (wait.AsDuration() < 0 || wait.AsDuration() > limitMax) {
		wrong.add("wait_timeout", fmt.Sprintf("%ds", wait.GetSeconds()), "0s to 365 days")
	}
	if limit := request.GetHoldTimeout(); limit != nil && (limit.AsDuration() < holdMin || limit.AsDuration() > limitMax) {
		wrong.add("hold_timeout", fmt.Sprintf("%ds", limit.GetSeconds()), "1 ms to 365 days")
	}
	mode := request.GetMode()
	mayDelay := request.GetLock().GetPath() == "" && mode != sidekeeperv1.LockMode_LOCK_MODE_READ &&
		mode != sidekeeperv1.LockMode_LOCK_MODE_SEMAPHORE
	if delay := request.GetLockDelay().AsDuration(); delay < 0 || delay > lockDelayMax || (delay > 0 && !mayDelay) {
		allowed := "0s to 600s, for MUTEX and WRITE, of a lock with `lock.name`"
		wrong.add("lock_delay", fmt.Sprintf("%gs", delay.Seconds()), allowed)
	}
	if holder := request.GetHolder(); len(holder) > holderBytesMax || strings.ContainsFunc(holder, unicode.IsControl) {
		wrong.add("holder", holder, "at most 255 bytes without control characters")
	}
	checkApplicationID(request.GetApplicationId(), &wrong)
	return path, wrong.status()
}
