package main

import (
	"fmt"
	"math"
	"slices"
)

// result is the output of --json. Medians are over the rounds.
type result struct {
	Events        int               `json:"events"`
	LatencyEvents int               `json:"latency_events"`
	Rate          int               `json:"rate"`
	Writers       int               `json:"writers"`
	Rounds        int               `json:"rounds"`
	Versions      map[string]string `json:"versions"` // of the systems, by the words of --only, and of node
	LeftOut       []string          `json:"left_out,omitempty"`
	Go            string            `json:"go"`
	CPUs          int               `json:"cpus"`
	Private       bool              `json:"private_server"`
	Server        server            `json:"server"`

	Systems []systemResult `json:"systems"` // one for each of their settings, notifyd's first
}

type server struct {
	Version           string `json:"version"`
	SynchronousCommit string `json:"synchronous_commit"`
	Fsync             string `json:"fsync"`
	SharedBuffers     string `json:"shared_buffers"`
}

// systemResult is a system with one set of settings. Figures that were not measured are nil.
type systemResult struct {
	System    string         `json:"system"`
	Settings  string         `json:"settings"`
	CommitOff bool           `json:"synchronous_commit_off"`
	Drain     *drainResult   `json:"drain,omitempty"`
	Latency   *latencyResult `json:"latency,omitempty"`
	Behind    *latencyResult `json:"behind_foreign_transactions,omitempty"`
	Writers   *writersResult `json:"writers,omitempty"`
}

type drainResult struct {
	Seconds       float64   `json:"seconds"`
	PerSecond     float64   `json:"events_per_second"`
	EachSeconds   []float64 `json:"each_seconds"`
	EachPerSecond []float64 `json:"each"`
	Repeats       int64     `json:"repeats"` // calls beyond one per event, in all rounds
	// Ratios are the rates of notifyd's variants divided by this rate, in their order.
	Ratios []float64 `json:"notifyd_ratios,omitempty"`
}

type latencyResult struct {
	Median summary   `json:"median"`
	Each   []summary `json:"each"`
}

// summary has milliseconds, from the return of COMMIT to the handler. WriteP50 is the writer's transaction from BEGIN to
// the return of COMMIT. Held is how many events were handled only after the foreign transactions had ended, including
// warm-up.
type summary struct {
	P50      float64 `json:"p50_ms"`
	P95      float64 `json:"p95_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
	WriteP50 float64 `json:"write_p50_ms"`
	Held     int     `json:"held"`
}

// waited returns the number of held events as text, or "" if no event was held.
func (s summary) waited() string {
	if s.Held == 0 {
		return ""
	}
	return fmt.Sprintf(", %d held", s.Held)
}

// writersResult has events per second: committed while no worker runs, committed while the system runs, and handled
// meanwhile.
type writersResult struct {
	Alone       float64   `json:"alone"`
	Beside      float64   `json:"beside"`
	Handled     float64   `json:"handled"`
	EachAlone   []float64 `json:"each_alone"`
	EachBeside  []float64 `json:"each_beside"`
	EachHandled []float64 `json:"each_handled"`
}

// compare computes medians and ratios. The first ours systems are notifyd's.
func (r *result) compare(ours int) {
	for i := range r.Systems {
		s := &r.Systems[i]
		if d := s.Drain; d != nil {
			d.PerSecond = math.Round(median(d.EachPerSecond))
			d.Seconds = median(d.EachSeconds)
		}
		s.Latency.settle()
		s.Behind.settle()
		if w := s.Writers; w != nil {
			w.Alone, w.Beside, w.Handled = math.Round(median(w.EachAlone)), math.Round(median(w.EachBeside)), math.Round(median(w.EachHandled))
		}
	}
	for _, s := range r.Systems {
		for _, our := range r.Systems[:ours] {
			if s.Drain != nil {
				s.Drain.Ratios = append(s.Drain.Ratios, ratio(our.Drain.PerSecond, s.Drain.PerSecond))
			}
		}
	}
}

// settle computes the medians.
func (l *latencyResult) settle() {
	if l == nil {
		return
	}
	of := func(field func(summary) float64) float64 {
		values := make([]float64, 0, len(l.Each))
		for _, s := range l.Each {
			values = append(values, field(s))
		}
		return median(values)
	}
	l.Median = summary{
		P50: of(func(s summary) float64 { return s.P50 }), P95: of(func(s summary) float64 { return s.P95 }),
		P99: of(func(s summary) float64 { return s.P99 }), Max: of(func(s summary) float64 { return s.Max }),
		WriteP50: of(func(s summary) float64 { return s.WriteP50 }), Held: int(of(func(s summary) float64 { return float64(s.Held) })),
	}
}

// ratio returns a/b, or 0 if b is 0.
func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return math.Round(a/b*100) / 100
}

// median returns the median. It leaves values unchanged.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// percentile returns the smallest value that at least the share p of all values does not exceed.
func percentile(sorted []float64, p float64) float64 {
	i := int(math.Ceil(float64(len(sorted))*p)) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}
