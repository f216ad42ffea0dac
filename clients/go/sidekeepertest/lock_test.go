package sidekeepertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

// hold holds a lock until the test ends.
func hold(t *testing.T, sidecar *sidekeepertest.Sidecar, request sidekeeper.LockRequest) *sidekeeper.Lock {
	t.Helper()
	lock, err := sidekeeper.HoldLock(sidecar.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Release() })
	return lock
}

// holding holds a lock in a goroutine, and sends the lock.
func holding(t *testing.T, sidecar *sidekeepertest.Sidecar, request sidekeeper.LockRequest) <-chan *sidekeeper.Lock {
	held := make(chan *sidekeeper.Lock, 1)
	go func() {
		lock, err := sidekeeper.HoldLock(sidecar.Context(), request)
		if err != nil {
			t.Error(err)
		}
		held <- lock
	}()
	return held
}

func receive[T any](t *testing.T, what string, channel <-chan T) T {
	t.Helper()
	select {
	case value := <-channel:
		return value
	case <-time.After(sidekeepertest.Patience):
		t.Fatalf("not within %v: %s", sidekeepertest.Patience, what)
		panic("unreachable")
	}
}

func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(sidekeepertest.Patience); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", sidekeepertest.Patience, what)
		}
	}
}

func lockError(t *testing.T, err error) *sidekeeper.LockError {
	t.Helper()
	var lost *sidekeeper.LockError
	if !errors.As(err, &lost) {
		t.Fatalf("not a LockError: %v", err)
	}
	return lost
}

// refused asks for a lock that is refused.
func refused(t *testing.T, sidecar *sidekeepertest.Sidecar, request sidekeeper.LockRequest) *sidekeeper.LockError {
	t.Helper()
	lock, err := sidekeeper.HoldLock(sidecar.Context(), request)
	if err == nil {
		_ = lock.Release()
	}
	return lockError(t, err)
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func TestProgramsHoldALockInTheirOrder(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	var programs []<-chan *sidekeeper.Lock
	for number := range 4 {
		holder := fmt.Sprintf("machine-%d", number)
		programs = append(programs, holding(t, sidecar, sidekeeper.LockRequest{Name: "bill", Holder: holder}))
		state := sidecar.WaitLock("bill", 1, number)
		all := append(state.Holders, state.Waiting...)
		equal(t, "last", all[number].Holder, holder)
	}
	var token int64
	for number, program := range programs {
		lock := receive(t, "the lock", program)
		if lock.FencingToken <= token {
			t.Errorf("token %d after %d", lock.FencingToken, token)
		}
		token = lock.FencingToken
		for _, later := range programs[number+1:] {
			equal(t, "later holders", len(later), 0)
		}
		equal(t, "Release", lock.Release(), nil)
	}
	sidecar.WaitLock("bill", 0, 0)
}

func TestReadersHoldTogetherAndWritersAlone(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	var programs []<-chan *sidekeeper.Lock
	modes := []sidekeeper.LockMode{sidekeeper.LockRead, sidekeeper.LockRead, sidekeeper.LockWrite, sidekeeper.LockRead}
	var state sidekeepertest.LockState
	for number, mode := range modes {
		programs = append(programs, holding(t, sidecar, sidekeeper.LockRequest{Name: "bill", Mode: mode}))
		state = sidecar.WaitLock("bill", min(number+1, 2), max(number-1, 0))
	}
	equal(t, "first in the queue", state.Waiting[0].Mode, sidekeeper.LockWrite)
	equal(t, "Release", receive(t, "the lock", programs[0]).Release(), nil)
	sidecar.WaitLock("bill", 1, 2)
	for _, program := range programs[1:] {
		equal(t, "Release", receive(t, "the lock", program).Release(), nil)
	}
}

func TestASemaphoreHasAsManyHoldersAsPermits(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	request := sidekeeper.LockRequest{Name: "bill", Permits: 2}
	var programs []<-chan *sidekeeper.Lock
	var state sidekeepertest.LockState
	for number := range 4 {
		programs = append(programs, holding(t, sidecar, request))
		state = sidecar.WaitLock("bill", min(number+1, 2), max(number-1, 0))
	}
	for number, one := range append(state.Holders, state.Waiting...) {
		equal(t, "mode", one.Mode, sidekeeper.LockSemaphore)
		if folder := []string{"leases/_c_", "locks/_c_"}[number/2]; !strings.HasPrefix(one.NodeName, folder) {
			t.Errorf("node %d: %s", number, one.NodeName)
		}
	}
	tries := request
	tries.WaitTimeout = -1
	full := refused(t, sidecar, tries)
	equal(t, "reason", full.Reason, "LOCK_NOT_FREE")
	if !strings.Contains(full.Details, state.Waiting[0].NodeName) {
		t.Errorf("not the first that waits: %s", full.Details)
	}
	equal(t, "reason", refused(t, sidecar, sidekeeper.LockRequest{Name: "bill", WaitTimeout: -1}).Reason, "LOCK_OF_OTHER_KIND")
	// The second holder goes first: the third holds, and the fourth waits for the first one.
	token := int64(0)
	for _, number := range []int{1, 2, 0, 3} {
		lock := receive(t, "a permit", programs[number])
		if number > 1 && lock.FencingToken <= token {
			t.Errorf("token %d after %d", lock.FencingToken, token)
		}
		token = max(token, lock.FencingToken)
		equal(t, "Release", lock.Release(), nil)
	}
	sidecar.WaitLock("bill", 0, 0)
}

func TestLocksHaveNamesAndPaths(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	named := hold(t, sidecar, sidekeeper.LockRequest{Name: "bill"})
	placed := hold(t, sidecar, sidekeeper.LockRequest{Path: "/locks/bill"})
	if !strings.HasPrefix(named.NodePath, "/test-sidekeeper/@-@locks/queues/bill/_c_") || !strings.HasPrefix(placed.NodePath, "/locks/bill/_c_") {
		t.Errorf("nodes: %s, %s", named.NodePath, placed.NodePath)
	}
	equal(t, "token", sidecar.Lock("/locks/bill").Holders[0].FencingToken, placed.FencingToken)
	names := []string{"bill"}
	for number := range 120 {
		names = append(names, fmt.Sprintf("lock-%03d", number))
		hold(t, sidecar, sidekeeper.LockRequest{Name: names[number+1]})
	}
	if got := sidecar.LockNames(); !slices.Equal(got, names) {
		t.Errorf("names: %v", got)
	}
}

func TestAProgramWaitsForAsLongAsItWants(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	hold(t, sidecar, sidekeeper.LockRequest{Name: "bill", Holder: "machine-7"})
	for _, limit := range []time.Duration{-1, 20 * time.Millisecond} {
		busy := refused(t, sidecar, sidekeeper.LockRequest{Name: "bill", WaitTimeout: limit})
		equal(t, "code", busy.Code, codes.DeadlineExceeded)
		equal(t, "reason", busy.Reason, "LOCK_NOT_FREE")
		if !strings.Contains(busy.Details, "machine-7") {
			t.Errorf("details: %s", busy.Details)
		}
	}
	ctx, cancel := context.WithCancel(sidecar.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := sidekeeper.HoldLock(ctx, sidekeeper.LockRequest{Name: "bill"})
		ended <- err
	}()
	sidecar.WaitLock("bill", 1, 1)
	cancel()
	equal(t, "error", receive(t, "HoldLock returns", ended), context.Canceled)
	sidecar.WaitLock("bill", 1, 0)
}

func TestAHoldThatASidecarRefusesIsRefused(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	hold(t, sidecar, sidekeeper.LockRequest{Name: "bill", ApplicationID: "a"})
	again := refused(t, sidecar, sidekeeper.LockRequest{Name: "bill", ApplicationID: "a", WaitTimeout: -1})
	equal(t, "code", again.Code, codes.FailedPrecondition)
	equal(t, "reason", again.Reason, "LOCK_HELD_ALREADY")
	equal(t, "reason", refused(t, sidecar, sidekeeper.LockRequest{Name: "bill", ApplicationID: "b", WaitTimeout: -1}).Reason, "LOCK_NOT_FREE")
	kind := refused(t, sidecar, sidekeeper.LockRequest{Name: "bill", Mode: sidekeeper.LockRead, WaitTimeout: -1})
	equal(t, "code", kind.Code, codes.FailedPrecondition)
	equal(t, "reason", kind.Reason, "LOCK_OF_OTHER_KIND")
	for field, request := range map[string]sidekeeper.LockRequest{
		"lock.name: given `a/b`":   {Name: "a/b"},
		"lock.name: given `..`":    {Name: ".."},
		"lock.name: given `@-@":    {Name: "@-@x"},
		"lock.name: given `ää":     {Name: strings.Repeat("ä", 101)},
		"lock.name: given `a\n":    {Name: "a\nb"},
		"lock.path: given `loc":    {Path: "locks"},
		"lock.path: given `/`":     {Path: "/"},
		"lock.path: given `/x-":    {Path: "/x-sidekeeper/y"},
		"wait_timeout":             {Name: "x", WaitTimeout: 366 * 24 * time.Hour},
		"hold_timeout":             {Name: "x", HoldTimeout: time.Microsecond},
		"holder":                   {Name: "x", Holder: strings.Repeat("x", 256)},
		"application_id":           {Name: "x", ApplicationID: "a b"},
		"mode: given `8`":          {Name: "x", Mode: 7},
		"permits: given `0`":       {Name: "x", Mode: sidekeeper.LockSemaphore},
		"permits: given `1001`":    {Name: "x", Permits: 1001},
		"lock_delay: given `601s`": {Name: "x", LockDelay: 601 * time.Second},
		"lock_delay: given `1s`":   {Path: "/x", LockDelay: time.Second},
		"lock_delay: given `2s`":   {Name: "x", Mode: sidekeeper.LockRead, LockDelay: 2 * time.Second},
		"permits: given `2`":       {Name: "x", Mode: sidekeeper.LockWrite, Permits: 2},
	} {
		wrong := refused(t, sidecar, request)
		if wrong.Code != codes.InvalidArgument || wrong.Reason != "INVALID_REQUEST" || !strings.HasPrefix(wrong.Details, field) {
			t.Errorf("%q: %v", field, wrong)
		}
	}
}

func TestTheWorkUnderALostLockIsCancelled(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	for loss, word := range map[sidekeepertest.LockLoss]string{
		sidekeepertest.LockLeaseLost: "LEASE_LOST", sidekeepertest.LockRevoked: "REVOKED",
		sidekeepertest.LockHoldTimeout: "HOLD_TIMEOUT", sidekeepertest.LockDraining: "DRAINING",
	} {
		lock := hold(t, sidecar, sidekeeper.LockRequest{Name: "bill"})
		next := holding(t, sidecar, sidekeeper.LockRequest{Name: "bill"})
		sidecar.WaitLock("bill", 1, 1)
		equal(t, "error", lock.Context().Err(), nil)
		sidecar.LoseLock("bill", loss)
		receive(t, "the loss", lock.Context().Done())
		lost := lockError(t, context.Cause(lock.Context()))
		equal(t, "code", lost.Code, codes.Aborted)
		equal(t, "reason", lost.Reason, "LOCK_LOST")
		equal(t, "details", lost.Details, "the sidecar has reported the loss: "+word)
		equal(t, "Release", lockError(t, lock.Release()), lost)
		equal(t, "Release", receive(t, "the next holder", next).Release(), nil)
	}
}

func TestALockIsLostByTheClock(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	limited := hold(t, sidecar, sidekeeper.LockRequest{Name: "limited", HoldTimeout: 10 * time.Millisecond})
	receive(t, "the end of its time", limited.Context().Done())
	if lost := lockError(t, limited.Release()); !strings.Contains(lost.Details, "HOLD_TIMEOUT") {
		t.Errorf("got %v", lost)
	}
	sidecar.SetLockLease(20 * time.Millisecond)
	leased := hold(t, sidecar, sidekeeper.LockRequest{Name: "leased"})
	receive(t, "the end of the lease", leased.Context().Done())
	lost := lockError(t, leased.Release())
	equal(t, "code", lost.Code, codes.DeadlineExceeded)
	equal(t, "reason", lost.Reason, "LOCK_LOST")
	sidecar.WaitLock("leased", 0, 0)
}

func TestASuspensionIsToldAndGrantsNothing(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	lock := hold(t, sidecar, sidekeeper.LockRequest{Name: "bill"})
	sidecar.SuspendLocks()
	eventually(t, "the suspension is told", lock.Suspended)
	next := holding(t, sidecar, sidekeeper.LockRequest{Name: "bill"})
	other := holding(t, sidecar, sidekeeper.LockRequest{Name: "other"})
	sidecar.WaitLock("bill", 1, 1)
	sidecar.WaitLock("other", 0, 1)
	third := refused(t, sidecar, sidekeeper.LockRequest{Name: "third", WaitTimeout: -1})
	if !strings.Contains(third.Details, "did not answer") {
		t.Errorf("got %v", third)
	}
	sidecar.ResumeLocks()
	eventually(t, "the resumption is told", func() bool { return !lock.Suspended() })
	equal(t, "Release", receive(t, "the other lock", other).Release(), nil)
	sidecar.SuspendLocks()
	equal(t, "Release", lock.Release(), nil)
	sidecar.WaitLock("bill", 0, 1)
	sidecar.ResumeLocks()
	equal(t, "Release", receive(t, "the next holder", next).Release(), nil)
}

func TestAHolderCanBeAskedForItsLock(t *testing.T) {
	sidecar := sidekeepertest.Run(t, nil)
	lock := hold(t, sidecar, sidekeeper.LockRequest{Name: "bill"})
	select {
	case <-lock.RevocationRequested():
		t.Fatal("nobody has asked")
	default:
	}
	for range 2 {
		sidecar.RequestRevocation("bill")
		receive(t, "the request", lock.RevocationRequested())
	}
	equal(t, "error", lock.Context().Err(), nil)
}

func TestAHandlerHoldsALock(t *testing.T) {
	held := make(chan struct{}, 2)
	app := application(func(ctx context.Context, _ *sidekeeper.Execution) error {
		lock, err := sidekeeper.HoldLock(ctx, sidekeeper.LockRequest{Name: "bill", Endpoint: "nowhere:1"})
		if err != nil {
			return err
		}
		held <- struct{}{}
		<-lock.Context().Done()
		return lock.Release()
	})
	sidecar := sidekeepertest.Run(t, app)
	lost := sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Item: 1})
	sidecar.WaitLock("bill", 1, 0)
	cancelled := sidecar.Start(sidekeepertest.Execution{Job: "orderSync", Item: 2})
	sidecar.WaitLock("bill", 1, 1)
	sidecar.LoseLock("bill", sidekeepertest.LockRevoked)
	if result := lost.Wait(); !strings.Contains(result.Message, "REVOKED") {
		t.Errorf("got %+v", result)
	}
	sidecar.WaitLock("bill", 1, 0)
	for range 2 {
		receive(t, "the handler holds the lock", held)
	}
	cancelled.Cancel(sidekeeper.CancelOperator)
	equal(t, "outcome", cancelled.Wait().Outcome, sidekeepertest.Success)
	sidecar.WaitLock("bill", 0, 0)
}

// failing notes that a test would have ended.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Fatal(said ...any) {
	f.said = fmt.Sprint(said...)
	panic(f)
}

func TestAMistakeOfTheTestEndsIt(t *testing.T) {
	for want, mistake := range map[string]func(*sidekeepertest.Sidecar){
		"nobody holds the lock /test-": func(s *sidekeepertest.Sidecar) { s.LoseLock("bill", sidekeepertest.LockRevoked) },
		"nobody holds the lock /other": func(s *sidekeepertest.Sidecar) { s.RequestRevocation("/other") },
		"lock.name: given `a/b`":       func(s *sidekeepertest.Sidecar) { s.Lock("a/b") },
		"nobody leads the election /t": func(s *sidekeepertest.Sidecar) { s.LoseLeadership("chief", sidekeepertest.LockRevoked) },
		"loss: given `HOLD_TIMEOUT`":   func(s *sidekeepertest.Sidecar) { s.LoseLeadership("chief", sidekeepertest.LockHoldTimeout) },
		"election.name: given `a/b`":   func(s *sidekeepertest.Sidecar) { s.Election("a/b") },
		"value: given `xx":             func(s *sidekeepertest.Sidecar) { s.AddCandidate("chief", strings.Repeat("x", 4097)) },
		"there is no application to s": func(s *sidekeepertest.Sidecar) { _ = s.Stop() },
	} {
		test := &failing{TB: t}
		sidecar := sidekeepertest.Run(test, nil)
		func() {
			defer func() { _ = recover() }()
			mistake(sidecar)
		}()
		if !strings.Contains(test.said, want) {
			t.Errorf("%s: got %q", want, test.said)
		}
	}
}
