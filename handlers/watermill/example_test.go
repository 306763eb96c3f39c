package watermill_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	wmlog "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/watermill"
)

// outage marks errors of the network: the events wait, and no attempt counts.
func outage(err error) error {
	if _, ok := errors.AsType[net.Error](err); ok {
		return delivery.Unavailable(err)
	}
	return delivery.Unclear(err)
}

func Example() {
	publisher := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, wmlog.NopLogger{})
	handler, err := watermill.New(publisher,
		func(e *delivery.Event) string { return "shop." + e.AggregateType },
		watermill.WithClassify(outage))
	if err != nil {
		panic(err)
	}
	defer handler.Close() //nolint:errcheck // it was closed in the process

	// A relay does this: relay.Handle("order.*", notifyd.Destination{Name: "bus", Handler: handler}).
	err = handler.Deliver(context.Background(), &delivery.Event{
		ID: 42, Type: "order.placed", AggregateType: "order", Payload: []byte(`{"order": 7}`),
	})
	if err != nil {
		panic(err)
	}

	messages, err := publisher.Subscribe(context.Background(), "shop.order")
	if err != nil {
		panic(err)
	}
	m := <-messages
	fmt.Println(m.UUID, m.Metadata.Get("notifyd-type"), string(m.Payload))
	m.Ack()
	// Output: 42 order.placed {"order": 7}
}

// TestReadme wants every block of Go in the README to be a part of this file.
func TestReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	for _, block := range blocks {
		if block, _, _ = strings.Cut(block, "```"); !strings.Contains(string(code), block) {
			t.Errorf("this is not in example_test.go:\n%s", block)
		}
	}
	if len(blocks) != 2 {
		t.Errorf("%d blocks", len(blocks))
	}
}
