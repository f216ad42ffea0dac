package sidekeeper

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// maxWaiting is the most events that wait; beyond it the stream is not read, until the sidecar detaches the slow reader.
const maxWaiting = 1024

// dispatcher calls a job's callbacks, one after the other, and lets executions begin in their turn.
//
// Callbacks and executions share one queue, so that an execution begins after the callback for the assignment that gave
// it its item has returned. A callback that does not return therefore holds up its job, and in the end its stream.
type dispatcher struct {
	log *slog.Logger

	mu      sync.Mutex
	steps   []func(ctx context.Context) error // bounded by its users, who wait for room
	wake    chan struct{}
	hasRoom event
	isEmpty event
}

func newDispatcher(log *slog.Logger) *dispatcher {
	return &dispatcher{log: log, wake: make(chan struct{}, 1), hasRoom: newEvent(), isEmpty: newEvent()}
}

// put has a step taken in its turn. An error of it, or a panic, is logged.
func (d *dispatcher) put(step func(ctx context.Context) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.steps = append(d.steps, step)
	d.isEmpty.clear()
	if len(d.steps) >= maxWaiting {
		d.hasRoom.clear()
	}
	wake(d.wake)
}

// room is closed while another event may be put in the queue.
func (d *dispatcher) room() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hasRoom.done()
}

// empty is closed when everything so far has had its turn.
func (d *dispatcher) empty() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isEmpty.done()
}

// run takes the turns, until the context is done.
func (d *dispatcher) run(ctx context.Context) {
	for {
		step := d.take()
		if step == nil {
			select {
			case <-d.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err := attempt(func() error { return step(ctx) }); err != nil {
			d.log.Error("a callback failed: " + err.Error())
		}
	}
}

// take returns the next step. Nil: there is none.
func (d *dispatcher) take() func(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.steps) == 0 {
		d.steps = nil
		d.isEmpty.set()
		return nil
	}
	step := d.steps[0]
	d.steps[0] = nil
	d.steps = d.steps[1:]
	if len(d.steps) < maxWaiting {
		d.hasRoom.set()
	}
	return step
}

// attempt calls a function of the application, and makes its panic an error.
func attempt(function func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic: %v\n%s", value, stackOfPanic(string(debug.Stack())))
		}
	}()
	return function()
}
