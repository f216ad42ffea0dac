package sidekeeper

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheListenerOfASocketIsKnown(t *testing.T) {
	for _, where := range []struct{ network, address string }{
		{"unix", filepath.Join(t.TempDir(), "s.sock")}, {"tcp4", "127.0.0.1:0"}, {"tcp", "[::]:0"},
	} {
		listener, err := net.Listen(where.network, where.address)
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		address := listener.Addr().String()
		if where.network != "unix" {
			_, port, _ := net.SplitHostPort(address)
			address = "127.0.0.1:" + port
		}
		accepted := make(chan net.Conn, 1)
		go func() {
			connection, _ := listener.Accept()
			accepted <- connection
		}()
		connection, err := net.Dial(listener.Addr().Network(), address)
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		defer (<-accepted).Close()
		if owner, err := listenerOwner(t.Context(), connection); err != nil || owner != os.Geteuid() {
			t.Errorf("%v: %d, %v", where, owner, err)
		}
	}
}

// An older kernel calls a socket that nobody has accepted one of root.
func TestAConnectionThatNobodyHasAcceptedIsNobodys(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	connection, err := net.Dial("tcp4", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if owner, err := listenerOwner(ctx, connection); !errors.Is(err, errNoSocket) {
		t.Errorf("%d, %v", owner, err)
	}
}

func TestSE3OnlyAListenerOfThisUserOrOfRootIsTrusted(t *testing.T) {
	own := os.Geteuid()
	for _, owner := range []int{own, 0} {
		if err := (finder{hasToken: true}).check("there", owner, nil); err != nil {
			t.Error(err)
		}
	}
	if err := (finder{}).check("there", own+1, nil); err == nil || !strings.Contains(err.Error(), "serves at there") {
		t.Error(err)
	}
	if err := (finder{}).check("there", 0, errOwnerUnknown); err != nil {
		t.Error(err)
	}
	for _, unknown := range []error{errOwnerUnknown, errNoSocket} {
		if err := (finder{hasToken: true}).check("there", own, unknown); err == nil {
			t.Error(unknown)
		}
	}
}
