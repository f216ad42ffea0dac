package sidekeeperotel_test

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"

	sidekeeper "github.com/sidekeeper/sidekeeper/clients/go"
	sidekeeperotel "github.com/sidekeeper/sidekeeper/clients/go/otel"
	"github.com/sidekeeper/sidekeeper/clients/go/sidekeepertest"
)

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestTheSidecarsSpanIsTheParent(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	var inner api.SpanContext
	sidecar := sidekeepertest.Run(t, &sidekeeper.Application{
		Middleware: []sidekeeper.Middleware{sidekeeperotel.Middleware(sidekeeperotel.WithTracerProvider(provider))},
		Jobs: []sidekeeper.Job{{Name: "orderSync", Handler: func(ctx context.Context, e *sidekeeper.Execution) error {
			inner = api.SpanContextFromContext(ctx)
			switch e.ItemParameter {
			case "fail":
				return errors.New("no luck")
			case "reject":
				return sidekeeper.Reject("no disk")
			case "panic":
				panic("oh")
			}
			return nil
		}}},
	})
	for _, one := range []struct {
		parameter string
		status    codes.Code
		events    int
	}{{"", codes.Unset, 0}, {"fail", codes.Error, 1}, {"reject", codes.Unset, 0}, {"panic", codes.Unset, 1}} {
		sidecar.Execute(sidekeepertest.Execution{
			Job: "orderSync", ItemParameter: one.parameter, Traceparent: traceparent, FencingToken: 77,
		})
		spans := recorder.Ended()
		span := spans[len(spans)-1]
		if span.Name() != "execute orderSync" || span.SpanKind() != api.SpanKindConsumer || !span.SpanContext().Equal(inner) {
			t.Errorf("span: %v", span)
		}
		if got := span.Parent().TraceID().String() + span.Parent().SpanID().String(); got != traceparent[3:35]+traceparent[36:52] {
			t.Errorf("parent: %s", got)
		}
		if span.Status().Code != one.status || len(span.Events()) != one.events {
			t.Errorf("%q: status %v, events %v", one.parameter, span.Status(), span.Events())
		}
		var tokens []int64
		for _, one := range span.Attributes() {
			if one.Key == attribute.Key("fencing.token") {
				tokens = append(tokens, one.Value.AsInt64())
			}
		}
		if len(tokens) != 1 || tokens[0] != 77 {
			t.Errorf("attributes: %v", span.Attributes())
		}
	}
}
