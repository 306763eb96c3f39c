package dispatch

import (
	"errors"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/observe"
)

// TestMeasure: which answers the figures count, and which they leave out.
func TestMeasure(t *testing.T) {
	t.Parallel()
	written := time.Unix(1000, 0)
	began := written.Add(time.Second)
	event := delivery.Event{ID: 1, CreatedAt: written}
	replayed := event
	replayed.Replay = 1
	for name, c := range map[string]struct {
		delivery     Delivery
		out          outcome
		class        delivery.Class
		begun, acked time.Duration // 0: not counted
	}{
		"delivered":        {Delivery{Event: &event}, outcome{verdict: VerdictDelivered}, 0, 1100 * time.Millisecond, 1300 * time.Millisecond},
		"failed":           {Delivery{Event: &event}, outcome{verdict: VerdictFailed, class: delivery.ClassEvent}, delivery.ClassEvent, 1100 * time.Millisecond, 0},
		"another attempt":  {Delivery{Event: &event, Failures: 1}, outcome{verdict: VerdictDelivered}, 0, 0, 1300 * time.Millisecond},
		"delayed":          {Delivery{Event: &event, Delayed: true}, outcome{verdict: VerdictDelivered}, 0, 0, 0},
		"replayed":         {Delivery{Event: &replayed}, outcome{verdict: VerdictDelivered}, 0, 0, 0},
		"destination down": {Delivery{Event: &event}, outcome{verdict: VerdictReleased, class: delivery.ClassDestination}, delivery.ClassDestination, 1100 * time.Millisecond, 0},
	} {
		var got, want figures
		j := &job{Value: task{batch: &Batch{events: []Delivery{c.delivery}}, event: c.delivery.Event}}
		c.out.from, c.out.to = 100*time.Millisecond, 300*time.Millisecond
		got.record(began, 200*time.Millisecond, []*job{j}, []outcome{c.out})
		want.classes[c.class] = 1
		if c.begun > 0 {
			want.begun.Observe(c.begun)
		}
		if c.acked > 0 {
			want.acked.Observe(c.acked)
		}
		if got.classes != want.classes || got.begun != want.begun || got.acked != want.acked {
			t.Errorf("%s: classes %v, begun %v, acked %v", name, got.classes, got.begun, got.acked)
		}
		if got.record(began, notBegun, []*job{j}, []outcome{c.out}); got.total[c.out.verdict] != 2 || got.answers() != 2 || got.classes != want.classes {
			t.Errorf("%s, and another that was not begun: totals %v, classes %v", name, got.total, got.classes)
		}
	}
}

// TestMeasureTraces: a counted duration of a sampled trace is the exemplar, and one without leaves the exemplar as it is.
func TestMeasureTraces(t *testing.T) {
	t.Parallel()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	began := time.Unix(1001, 0)
	var f figures
	record := func(headers map[string]string, verdict Verdict) {
		e := &delivery.Event{CreatedAt: time.Unix(1000, 0), Headers: headers}
		j := &job{Value: task{batch: &Batch{events: []Delivery{{Event: e}}}, event: e}}
		f.record(began, time.Second, []*job{j}, []outcome{{verdict: verdict, from: time.Millisecond, to: 2 * time.Millisecond}})
	}
	record(nil, VerdictDelivered)
	if f.begun.Exemplar.TraceID+f.acked.Exemplar.TraceID != "" {
		t.Errorf("exemplars without a trace: %+v, %+v", f.begun.Exemplar, f.acked.Exemplar)
	}
	record(map[string]string{"traceparent": "00-" + trace + "-00f067aa0ba902b7-01"}, VerdictFailed)
	record(nil, VerdictDelivered)
	want := observe.Exemplar{TraceID: trace, Duration: time.Second + time.Millisecond, At: began.Add(time.Millisecond)}
	if f.begun.Exemplar != want || f.acked.Exemplar.TraceID != "" {
		t.Errorf("exemplars %+v, %+v", f.begun.Exemplar, f.acked.Exemplar)
	}
	for value, sampled := range map[string]bool{
		"00-" + trace + "-00f067aa0ba902b7-03":                    true,
		"00-" + trace + "-00f067aa0ba902b7-00":                    false, // not sampled
		"01-" + trace + "-00f067aa0ba902b7-01":                    false,
		"00-" + trace[1:] + "é-00f067aa0ba902b7-1":                false,
		"00-" + trace + "-00f067aa0ba902b7-zz":                    false,
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01": false,
		trace: false, "": false,
	} {
		if got := sampledTrace(value); got != "" != sampled || sampled && got != trace {
			t.Errorf("%q: %q", value, got)
		}
	}
}

// TestTrouble: failures in a row end with a delivery, and neither a throttled call nor the relay's own
// fault is one of the destination's.
func TestTrouble(t *testing.T) {
	t.Parallel()
	var f trouble
	bad := errors.New("401")
	for i, step := range []struct {
		out  outcome
		want uint64
		last error
	}{
		{outcome{verdict: VerdictReleased, class: delivery.ClassRelay, err: ErrStopping}, 0, nil},
		{outcome{verdict: VerdictReleased, class: delivery.ClassDestination, err: bad, throttled: true}, 0, nil},
		{outcome{verdict: VerdictQuarantined, class: delivery.ClassDestination, err: bad}, 1, bad},
		{outcome{verdict: VerdictFailed, class: delivery.ClassEvent, err: bad}, 2, bad},
		{outcome{verdict: VerdictDead, class: delivery.ClassEvent, err: errLapsed}, 3, errLapsed},
		{outcome{verdict: VerdictDelivered}, 0, errLapsed},
		{outcome{verdict: VerdictFailed, class: delivery.ClassEvent, err: bad}, 1, bad},
	} {
		f.note(&step.out)
		if f.failures != step.want || !errors.Is(f.last, step.last) || f.since.IsZero() != (step.want == 0) || f.at.IsZero() != (step.last == nil) {
			t.Errorf("step %d: %+v", i, f)
		}
	}
}
