// An example of a destination that notifyd does not have: a gRPC service.
package main

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/notifyd/notifyd/delivery"
)

// reserveMethod is the method to call. A real service has generated stubs; the
// example's service takes a google.protobuf.Struct, so that it needs no generated
// code.
const reserveMethod = "/warehouse.v1.Warehouse/Reserve"

// idempotencyKey is the metadata by which the service recognises a call that it
// has answered before: an event may be delivered more than once.
const idempotencyKey = "idempotency-key"

// warehouse delivers events to the service behind conn. The caller closes conn.
type warehouse struct{ conn grpc.ClientConnInterface }

// Deliver calls the service and returns nil once it has answered.
func (w warehouse) Deliver(ctx context.Context, e *delivery.Event) error {
	var request structpb.Struct
	if err := protojson.Unmarshal(e.Payload, &request); err != nil {
		return delivery.Permanent(fmt.Errorf("warehouse: the payload is not a JSON object: %w", err))
	}

	pairs := []string{idempotencyKey, e.DedupeID()}
	if trace := e.Headers["traceparent"]; trace != "" {
		pairs = append(pairs, "traceparent", trace)
	}

	ctx = metadata.AppendToOutgoingContext(ctx, pairs...)
	return classify(ctx, w.conn.Invoke(ctx, reserveMethod, &request, &emptypb.Empty{}))
}

// classify decides by the code of the answer whose fault an error is, which notifyd cannot
// know.
func classify(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}

	err = fmt.Errorf("warehouse: %w", err)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err) // the relay's own timeout, or its end
	}

	switch status.Code(err) {
	case codes.AlreadyExists:
		return nil // a repeated event
	case codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.OutOfRange:
		return delivery.Permanent(err) // no further attempt cures it
	case codes.Unavailable, codes.DeadlineExceeded, codes.Unauthenticated,
		codes.PermissionDenied, codes.Unimplemented, codes.Canceled:
		return delivery.Unavailable(err) // the fault of the service or the relay: no attempt counts
	case codes.ResourceExhausted:
		return delivery.Throttled(0, err) // the service asks for fewer calls: no attempt counts either
	default:
		return err // perhaps this event's fault: try again, with a limit
	}
}
