package delivery

import (
	"slices"
	"testing"
)

// TestAck: all middleware that asks gets the acknowledgement, the innermost first.
func TestAck(t *testing.T) {
	t.Parallel()
	var got []string
	e := &Event{ID: 1}
	e.OnAck(func(a Ack) { got = append(got, "outer "+a.Partition) })
	sent := *e
	sent.OnAck(func(a Ack) { got = append(got, "inner "+a.Partition) })
	sent.Acknowledged(func() Ack { return Ack{Partition: "3"} })
	if want := []string{"inner 3", "outer 3"}; !slices.Equal(got, want) {
		t.Errorf("called %q, want %q", got, want)
	}
	got = nil
	e.Acknowledged(func() Ack { return Ack{Partition: "4"} })
	if want := []string{"outer 4"}; !slices.Equal(got, want) {
		t.Errorf("the original called %q, want %q", got, want)
	}
}

// TestAckWithoutMiddleware: the handler computes nothing, and allocates nothing.
func TestAckWithoutMiddleware(t *testing.T) { //nolint:paralleltest // allocations of other tests would count
	e := &Event{ID: 1}
	partition := int32(1000)
	allocated := testing.AllocsPerRun(100, func() {
		e.Acknowledged(func() Ack {
			t.Error("nobody asks")
			return Ack{Offset: int64(partition)}
		})
	})
	if allocated > 0 {
		t.Errorf("%v allocations", allocated)
	}
}
