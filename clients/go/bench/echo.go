package main

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echoBytes is about what a report and its answer have.
const echoBytes = 64

const echoMethod = "/echo.Echo/Echo"

var echoService = grpc.ServiceDesc{
	ServiceName: "echo.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			message := new(wrapperspb.BytesValue)
			return message, decode(message)
		},
	}},
}

// serveEcho is the echo server; a process of its own, until it is interrupted.
func serveEcho(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	server.RegisterService(&echoService, nil)
	return server.Serve(listener)
}

// callEcho returns how many calls are made a second, and how long one takes alone.
func callEcho(ctx context.Context, socket string) (float64, []time.Duration, error) {
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, nil, err
	}
	defer connection.Close()
	message := wrapperspb.Bytes(make([]byte, echoBytes))
	call := func() error {
		return connection.Invoke(ctx, echoMethod, message, new(wrapperspb.BytesValue), grpc.WaitForReady(true))
	}
	alone := make([]time.Duration, 0, roundTrips)
	for range roundTrips {
		began := time.Now()
		if err := call(); err != nil {
			return 0, nil, err
		}
		alone = append(alone, time.Since(began))
	}
	var made atomic.Int64
	var failed atomic.Value
	var callers sync.WaitGroup
	until := time.Now().Add(echoTime)
	for range concurrency {
		callers.Add(1)
		go func() {
			defer callers.Done()
			for time.Now().Before(until) {
				if err := call(); err != nil {
					failed.Store(err)
					return
				}
				made.Add(1)
			}
		}()
	}
	callers.Wait()
	if err, ok := failed.Load().(error); ok {
		return 0, nil, err
	}
	return float64(made.Load()) / echoTime.Seconds(), alone, nil
}
