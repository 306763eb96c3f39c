package delivery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/notifyd/notifyd/delivery"
)

// order is what the events of the example are about.
type order struct {
	ID    int    `json:"order"`
	Email string `json:"email"`
}

// A handler of a type of payload need not decode it.
func ExampleHandleJSON() {
	h := delivery.HandleJSON(func(_ context.Context, e *delivery.Event, o order) error {
		fmt.Printf("%s: order %d of %s\n", e.Type, o.ID, o.Email)
		return nil
	})
	err := h.Deliver(context.Background(), &delivery.Event{Type: "order.placed", Payload: []byte(`{"order": 1042, "email": "ann@example.com"}`)})
	fmt.Println(err)
	err = h.Deliver(context.Background(), &delivery.Event{ID: 7, Type: "order.placed", Payload: []byte(`{"order": "1042"}`)})
	fmt.Println(err)
	// Output:
	// order.placed: order 1042 of ann@example.com
	// <nil>
	// event 7: decode the payload: json: cannot unmarshal string into Go struct field order.order of type int
}

// TestHandleJSON: what does not fit is permanent, and what the function returns stays as it is.
func TestHandleJSON(t *testing.T) {
	t.Parallel()
	errBusy := errors.New("busy")
	h := delivery.HandleJSON(func(context.Context, *delivery.Event, *order) error { return errBusy })
	for _, c := range []struct {
		event     delivery.Event
		permanent bool
	}{
		{delivery.Event{Payload: []byte(`{"order": 1, "new": true}`)}, false},
		{delivery.Event{Payload: []byte(`null`)}, false},
		{delivery.Event{Payload: []byte(`{}`), ContentType: "application/cloudevents+json; charset=utf-8"}, false},
		{delivery.Event{Payload: []byte(`{`)}, true},
		{delivery.Event{Payload: []byte(`[]`)}, true},
		{delivery.Event{}, true},
		{delivery.Event{Payload: []byte(`{}`), ContentType: "application/avro"}, true},
	} {
		err := h.Deliver(t.Context(), &c.event)
		if c.permanent != delivery.IsPermanent(err) || c.permanent == errors.Is(err, errBusy) {
			t.Errorf("%s %q: %v", c.event.ContentType, c.event.Payload, err)
		}
	}
	err := h.Deliver(t.Context(), &delivery.Event{Payload: []byte(`[]`)})
	if _, is := errors.AsType[*json.UnmarshalTypeError](err); !is {
		t.Errorf("the error of the decoder is lost: %v", err)
	}
}
