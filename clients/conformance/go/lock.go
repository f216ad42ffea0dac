package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

// lockGiven are the fields of the commands lock and unlock.
type lockGiven struct {
	Name          string   `json:"name"`
	Path          string   `json:"path"`
	Mode          string   `json:"mode"`
	Permits       uint32   `json:"permits"`
	WaitTimeout   *float64 `json:"wait_timeout"`
	HoldTimeout   *float64 `json:"hold_timeout"`
	LockDelay     float64  `json:"lock_delay"`
	Holder        string   `json:"holder"`
	ApplicationID string   `json:"application_id"`
}

func (g lockGiven) request() sidekeeper.LockRequest {
	modes := map[string]sidekeeper.LockMode{"READ": sidekeeper.LockRead, "WRITE": sidekeeper.LockWrite}
	request := sidekeeper.LockRequest{
		Name: g.Name, Path: g.Path, Mode: modes[g.Mode], Permits: g.Permits, LockDelay: duration(g.LockDelay),
		Holder: g.Holder, ApplicationID: g.ApplicationID,
	}
	if g.WaitTimeout != nil {
		request.WaitTimeout = cmp.Or(duration(*g.WaitTimeout), -1)
	}
	if g.HoldTimeout != nil {
		request.HoldTimeout = duration(*g.HoldTimeout)
	}
	return request
}

func duration(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}

// underLock is the work under a lock.
type underLock struct {
	name     string
	once     sync.Once
	released chan struct{}
}

// lock holds a lock, on a goroutine of its own.
func (d *driven) lock(given lockGiven) {
	one := &underLock{name: cmp.Or(given.Name, given.Path), released: make(chan struct{})}
	d.mu.Lock()
	d.locks = append(d.locks, one)
	d.mu.Unlock()
	go one.run(given.request())
}

func (d *driven) unlock(given lockGiven) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, one := range d.locks {
		if one.name == given.Name {
			one.once.Do(func() { close(one.released) })
		}
	}
}

// run holds the lock until the driver ends it, or until it is lost.
func (u *underLock) run(request sidekeeper.LockRequest) {
	lock, err := sidekeeper.HoldLock(context.Background(), request)
	if err != nil {
		u.failed(err)
		return
	}
	u.tell("lock_held", fields{"token": lock.FencingToken, "node": lock.NodePath})
	u.work(lock)
	if err := lock.Release(); err != nil {
		u.failed(err)
		return
	}
	u.tell("lock_released", fields{})
}

func (u *underLock) work(lock *sidekeeper.Lock) {
	for asked := lock.RevocationRequested(); ; {
		select {
		case <-u.released:
			return
		case <-lock.Context().Done():
			u.tell("lock_cancelled", fields{})
			return
		case <-asked:
			asked = nil
			u.tell("lock_asked", fields{})
		}
	}
}

func (u *underLock) failed(err error) {
	var failure *sidekeeper.LockError
	if !errors.As(err, &failure) {
		slog.Error(err.Error())
		return
	}
	u.tell("lock_failed", fields{"code": codeName(failure.Code), "reason": failure.Reason, "message": failure.Details})
}

// tell tells something of the lock.
func (u *underLock) tell(event string, more fields) {
	told := maps.Clone(more)
	told["lock"] = u.name
	tell(event, told)
}
