package status

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/notifyd/notifyd/internal/admin"
)

// scrapeTimeout bounds a scrape: the relay is on this machine, or not there.
const scrapeTimeout = 2 * time.Second

// Relay is one relay's report about itself.
type Relay struct {
	Address string `json:"address"`
	// Listening and DatabaseUp report its health; Awake, whether it keeps the bell silent.
	Listening  bool `json:"listening"`
	DatabaseUp bool `json:"database_up"`
	Awake      bool `json:"awake"`
	// Refused are the SQLSTATEs with which the database refuses what the relay asks for.
	Refused []string `json:"refused,omitempty"`
	// Hangs are the reasons of its hangs, as it says at /readyz; empty while nothing hangs.
	Hangs        []string           `json:"hangs,omitempty"`
	Destinations []RelayDestination `json:"destinations"`
}

// RelayDestination is a destination of that relay. Counters begin with its start.
type RelayDestination struct {
	Name string `json:"name"`
	// Unavailable reports that the breaker is open, or lets a probe through.
	Unavailable bool `json:"unavailable"`
	// State is that of the breaker: closed, open, probing, ramping or throttled;
	// empty if the relay's version does not report it.
	State string `json:"state"`
	// Gap is the time between the starts of two deliveries while the destination is
	// throttled, in seconds; 0 otherwise.
	Gap float64 `json:"throttled_gap_seconds"`
	// Paused reports that the destination is paused at that relay.
	Paused    bool    `json:"paused"`
	Running   int     `json:"running"`
	Queued    int     `json:"queued"`
	Delivered float64 `json:"delivered"`
	Failed    float64 `json:"failed"`
	Dead      float64 `json:"dead"`
	// PerSecond is the rate of deliveries since the previous status; nil for the first one.
	PerSecond *float64 `json:"per_second,omitempty"`
}

// scrape queries a relay; nil if the answer is not that of a relay.
func scrape(ctx context.Context, a admin.Access) *Relay {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	// First, because it is answered even where a hang keeps the figures back.
	var hangs []string
	code, body, err := a.Get(ctx, "/readyz?verbose")
	if err == nil && code == http.StatusServiceUnavailable {
		for _, reason := range admin.Failures(string(body)) {
			if text, ok := strings.CutPrefix(reason, "relay: "); ok {
				hangs = append(hangs, text)
			}
		}
	}
	var relay *Relay
	if code, body, err = a.Get(ctx, "/metrics"); err == nil && code == http.StatusOK {
		relay = parseRelay(a.Address, bytes.NewReader(body))
	}
	if relay == nil && len(hangs) > 0 {
		relay = &Relay{Address: a.Address, DatabaseUp: true}
	}
	if relay != nil {
		relay.Hangs = hangs
	}
	return relay
}

var (
	sample   = regexp.MustCompile(`^(notifyd_\w+)(?:\{(.*)\})? (\S+)$`)
	sqlState = regexp.MustCompile(`^[0-9A-Z]{5}$`)
	label    = regexp.MustCompile(`(\w+)="([^"\\]*)"`)
)

// parseRelay reads the text format of Prometheus, as far as a relay writes it;
// nil if the metrics are not those of a relay.
func parseRelay(address string, r io.Reader) *Relay {
	relay := &Relay{Address: address}
	known := false
	byName := make(map[string]*RelayDestination)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		m := sample.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		value, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			continue
		}
		known = known || m[1] == "notifyd_database_up"
		labels := make(map[string]string)
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels[l[1]] = l[2]
		}
		relay.set(m[1], labels, value)
		if name := labels["destination"]; name != "" {
			if byName[name] == nil {
				byName[name] = &RelayDestination{Name: name}
			}
			byName[name].set(m[1], labels, value)
		}
	}
	if !known || lines.Err() != nil {
		return nil
	}
	for _, d := range byName {
		relay.Destinations = append(relay.Destinations, *d)
	}
	slices.SortFunc(relay.Destinations, func(a, b RelayDestination) int { return cmp.Compare(a.Name, b.Name) })
	return relay
}

func (r *Relay) set(name string, labels map[string]string, value float64) {
	switch name {
	case "notifyd_database_refuses":
		if value > 0 && sqlState.MatchString(labels["code"]) {
			r.Refused = append(r.Refused, labels["code"])
		}
	case "notifyd_listener_connected":
		r.Listening = value == 1
	case "notifyd_database_up":
		r.DatabaseUp = value == 1
	case "notifyd_bell_awake":
		r.Awake = value == 1
	}
}

func (d *RelayDestination) set(name string, labels map[string]string, value float64) {
	switch name + " " + labels["outcome"] {
	case "notifyd_destination_unavailable ":
		d.Unavailable = value == 1
	case "notifyd_destination_state ":
		if value == 1 {
			d.State = labels["state"]
		}
	case "notifyd_destination_throttled_gap_seconds ":
		d.Gap = value
	case "notifyd_destination_paused ":
		d.Paused = value == 1
	case "notifyd_destination_running ":
		d.Running = int(value)
	case "notifyd_destination_queued ":
		d.Queued = int(value)
	case "notifyd_deliveries_total delivered":
		d.Delivered = value
	case "notifyd_deliveries_total failed":
		d.Failed = value
	case "notifyd_deliveries_total dead":
		d.Dead = value
	}
}

// Rates fills in the rates since an earlier status. A relay that has restarted
// since has none.
func (s *Status) Rates(before *Status) {
	seconds := s.At.Sub(before.At).Seconds()
	if s.Relay == nil || before.Relay == nil || seconds <= 0 {
		return
	}
	for i := range s.Relay.Destinations {
		d := &s.Relay.Destinations[i]
		for _, b := range before.Relay.Destinations {
			if b.Name == d.Name && d.Delivered >= b.Delivered {
				rate := (d.Delivered - b.Delivered) / seconds
				d.PerSecond = &rate
			}
		}
	}
}
