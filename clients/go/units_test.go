package sidekeeper

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"http://127.0.0.1:7070":  "dns:///127.0.0.1:7070",
		"http://127.0.0.1:7070/": "dns:///127.0.0.1:7070",
		"localhost:7070":         "dns:///localhost:7070",
		"[::1]:7070":             "dns:///[::1]:7070",
		"https://h.internal:7":   "dns:///h.internal:7",
		"http://[::1]:7070":      "dns:///[::1]:7070",
		"unix:///run/s.sock":     "unix:/run/s.sock",
		"unix:/run/s.sock":       "unix:/run/s.sock",
	} {
		if got, err := endpointTarget(endpoint); err != nil || got != want {
			t.Errorf("%s: %q, %v", endpoint, got, err)
		}
	}
	for _, endpoint := range []string{
		"https://127.0.0.1", "ftp://127.0.0.1:7070", "127.0.0.1", "7070", ":7070", "http://127.0.0.1",
		"http://127.0.0.1:port", "http://127.0.0.1:0", "http://127.0.0.1:70700", "http://127.0.0.1:7070/path",
		"http://127.0.0.1:7070?a=b", "http://127.0.0.1:7070#a", "http://user@127.0.0.1:7070", "http://:7070", "::1:7070",
		"unix:", "unix:s.sock", "unix://s.sock", "",
	} {
		got, err := endpointTarget(endpoint)
		allowed := "allowed are HOST:PORT, http://HOST:PORT, https://HOST:PORT, unix:PATH and unix:///PATH"
		if err == nil || !strings.Contains(err.Error(), "endpoint \""+endpoint) || !strings.HasSuffix(err.Error(), allowed) {
			t.Errorf("%s: %q, %v", endpoint, got, err)
		}
	}
}

func TestTheEnvironmentIsHeeded(t *testing.T) {
	t.Setenv(EndpointVariable, "unix:///run/s.sock")
	if got := placeOf(""); got != (place{endpoint: "unix:///run/s.sock", isGiven: true}) {
		t.Errorf("got %v", got)
	}
	if got := placeOf("h:1"); got != (place{endpoint: "h:1", isGiven: true}) {
		t.Errorf("got %v", got)
	}
	t.Setenv(EndpointVariable, "")
	if got := placeOf(""); got != (place{endpoint: DefaultEndpoint}) {
		t.Errorf("got %v", got)
	}
	t.Setenv(InstanceNameVariable, "pod-1")
	job, err := register(Job{Name: "orderSync", Handler: func(context.Context, *Execution) error { return nil }}, nil)
	if err != nil || job.InstanceName != "pod-1" || job.Concurrency != DefaultConcurrency {
		t.Errorf("got %v, %v", job, err)
	}
}

func TestWhatCannotRunIsRefused(t *testing.T) {
	handler := func(context.Context, *Execution) error { return nil }
	for want, jobs := range map[string][]Job{
		"the application has no job":                          nil,
		"a job has no name":                                   {{Handler: handler}},
		`job "a": it is registered twice`:                     {{Name: "a", Handler: handler}, {Name: "a", Handler: handler}},
		`job "a": it has no handler`:                          {{Name: "a", Configuration: &JobConfiguration{ShardingTotalCount: 1}}},
		`job "a": concurrency: -1 is negative`:                {{Name: "a", Handler: handler, Concurrency: -1}},
		`job "a": weight: 1001 is out of range`:               {{Name: "a", Handler: handler, Weight: 1001}},
		`job "a": instance name: "12" is not 1 to 64`:         {{Name: "a", Handler: handler, InstanceName: "12"}},
		`job "a": sharding total count: -1 is out of range`:   {{Name: "a", Handler: handler, Configuration: &JobConfiguration{ShardingTotalCount: -1}}},
		`job "a": concurrency: -1 is negative; job "b": conc`: {{Name: "a", Concurrency: -1}, {Name: "b", Concurrency: -1}},
	} {
		err := (&Application{Jobs: jobs}).Run(context.Background())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	continuous := &JobConfiguration{ShardingTotalCount: 1, Props: map[string]string{continuousProperty: "continuous"}}
	if _, err := register(Job{Name: "a", Configuration: continuous}, nil); err != nil {
		t.Errorf("a job that owns its items all the time needs no handler: %v", err)
	}
}

func TestItemParametersThatCannotBeExpressed(t *testing.T) {
	if _, err := ItemParameters(map[int]string{3: "a,b"}); err == nil || !strings.Contains(err.Error(), "item parameter 3") {
		t.Errorf("error: %v", err)
	}
}

func TestWhatAnAnswerProvesOfALease(t *testing.T) {
	var lock sync.Mutex
	ended := 0
	l := newLease(&lock, func() { ended++ })
	lock.Lock()
	defer lock.Unlock()
	defer l.close()
	span := func(length time.Duration) *time.Duration { return &length }
	now := boottime()
	lasts := func(what string, got bool, want time.Duration) {
		t.Helper()
		if !got || !l.known || l.until != want {
			t.Errorf("%s: it lasts: %t, %t until %v instead of %v", what, got, l.known, l.until, want)
		}
	}
	over := func(what string, got bool, times int) {
		t.Helper()
		if got || ended != times {
			t.Errorf("%s: it lasts: %t, and has ended %d times instead of %d", what, got, ended, times)
		}
	}
	l.tell(span(time.Hour), false)
	lasts("the first answer, instead of what the stream has said", l.prove(span(time.Minute), now-time.Second), now+59*time.Second)
	lasts("a shorter answer", l.prove(span(20*time.Second), now), now+59*time.Second)
	lasts("what the stream says after an answer", l.tell(span(time.Hour), false), now+59*time.Second)
	lasts("a longer answer", l.prove(span(2*time.Minute), now), now+2*time.Minute)
	over("zero", l.prove(span(0), now), 1)
	over("zero once more", l.prove(span(0), now), 1)
	over("what the stream says after that", l.tell(span(time.Hour), false), 1)
	over("an answer that is read late", l.prove(span(time.Second), now-time.Second), 1)
	lasts("an answer in time", l.prove(span(time.Minute), now), now+time.Minute)
	l.until = now
	over("an answer that is read late, first of all", l.prove(span(time.Second), now-time.Second), 2)
	if !l.prove(nil, now) || l.known || l.over {
		t.Error("a lease without an end ends")
	}
	if !l.tell(nil, true) || l.prove(span(0), now) || ended != 2 {
		t.Error("a session that was lost has no lease, and ended")
	}
	if !l.tell(span(time.Hour), false) || !l.known {
		t.Error("the stream is not believed in a new session")
	}
}

func TestWaitsDoubleUpToTheCap(t *testing.T) {
	waits := newBackoff()
	for _, limit := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		limit *= time.Millisecond
		if wait := waits.next(); wait < limit/2 || wait > limit {
			t.Errorf("%v is not between a half of %v and it", wait, limit)
		}
	}
	waits.reset()
	if wait := waits.next(); wait > backoffBase {
		t.Errorf("after a reset: %v", wait)
	}
}

func TestLongTextsAreCutBetweenCharacters(t *testing.T) {
	text := head(strings.Repeat("\u00e9", 100), 50)
	if len(text) > 50 || !strings.HasSuffix(text, cut) || strings.Contains(text, "\ufffd") {
		t.Errorf("got %q", text)
	}
}
