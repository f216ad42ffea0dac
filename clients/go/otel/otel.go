// Package sidekeeperotel makes the sidecar's span the parent of a span for each handler, by OpenTelemetry.
//
//	app.Middleware = append(app.Middleware, sidekeeperotel.Middleware())
//
// The calls of the client itself are traced by otelgrpc, where that is wanted:
//
//	app.DialOptions = append(app.DialOptions, grpc.WithStatsHandler(otelgrpc.NewClientHandler()))
package sidekeeperotel

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
)

const tracerName = "sidekeeper"

// Option changes how executions are traced.
type Option func(*settings)

type settings struct {
	provider trace.TracerProvider
}

// WithTracerProvider has spans made by this provider rather than the global one.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(s *settings) { s.provider = provider }
}

// Middleware runs each handler in a span "execute JOB" below the sidecar's. An error that the handler returns, other than
// a rejection, and a panic in it make the span one that has failed.
func Middleware(options ...Option) sidekeeper.Middleware {
	var s settings
	for _, option := range options {
		option(&s)
	}
	return func(next sidekeeper.Handler) sidekeeper.Handler {
		return func(ctx context.Context, execution *sidekeeper.Execution) error {
			provider := s.provider
			if provider == nil {
				provider = otel.GetTracerProvider() // the application may set it at any time
			}
			ctx, span := provider.Tracer(tracerName, trace.WithInstrumentationVersion(sidekeeper.Version)).Start(
				parentOf(ctx, execution), "execute "+execution.JobName,
				trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attributesOf(execution)...),
			)
			defer span.End() // also records a panic on its way out
			err := next(ctx, execution)
			var rejection *sidekeeper.RejectError
			if err != nil && !errors.As(err, &rejection) {
				span.RecordError(err)
				span.SetStatus(codes.Error, err.Error())
			}
			return err
		}
	}
}

// parentOf returns a context with the sidecar's span, if it traces.
func parentOf(ctx context.Context, execution *sidekeeper.Execution) context.Context {
	carrier := propagation.MapCarrier{}
	if execution.Traceparent != "" {
		carrier.Set("traceparent", execution.Traceparent)
	}
	if execution.Tracestate != "" {
		carrier.Set("tracestate", execution.Tracestate)
	}
	return propagation.TraceContext{}.Extract(ctx, carrier)
}

func attributesOf(execution *sidekeeper.Execution) []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("job.name", execution.JobName),
		attribute.Int("item", execution.Item),
		attribute.String("execution.id", execution.ExecutionID),
		attribute.String("execution.source", execution.Source.String()),
		attribute.Int("execution.attempt", execution.Attempt),
		attribute.Int64("fencing.token", execution.FencingToken),
	}
}
