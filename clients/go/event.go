package sidekeeper

// event can be waited for in a select, and can be reset. Its methods need the lock of its owner.
type event struct {
	happened chan struct{}
	is       bool
}

// newEvent returns one that has happened.
func newEvent() event {
	happened := make(chan struct{})
	close(happened)
	return event{happened: happened, is: true}
}

func (e *event) set() {
	if !e.is {
		e.is = true
		close(e.happened)
	}
}

func (e *event) clear() {
	if e.is {
		e.is = false
		e.happened = make(chan struct{})
	}
}

// done is closed once it has happened; ask again after it was taken back.
func (e *event) done() <-chan struct{} {
	return e.happened
}

// wake fills a channel of capacity one, so that its reader checks once more.
func wake(channel chan<- struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}
