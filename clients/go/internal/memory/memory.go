// Package memory lets the calls of a context go to the sidecar in memory of package sidekeepertest.
package memory

import (
	"context"

	"google.golang.org/grpc"
)

type key struct{}

// With returns a context whose calls go where these settings of the connection lead.
func With(ctx context.Context, options ...grpc.DialOption) context.Context {
	return context.WithValue(ctx, key{}, options)
}

// DialOptions returns the settings of a context's connection to a sidecar in memory. Nil: there is none.
func DialOptions(ctx context.Context) []grpc.DialOption {
	options, _ := ctx.Value(key{}).([]grpc.DialOption)
	return options
}
