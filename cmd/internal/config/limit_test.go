package config

import (
	"strings"
	"testing"
	"time"

	"github.com/notifyd/notifyd/delivery"
)

// limited reads a destination of the type "log" with more settings.
func limited(t *testing.T, settings string) (*Config, error) {
	t.Helper()
	file := "version: 1\ndatabase: {url: postgres://db}\ndestinations:\n  a.b: {type: bare, " + settings + "}\nroutes: [{match: '*', to: [a.b]}]\n"
	return Parse("notifyd.yaml", []byte(file), Registry{"bare": func() Settings { return &bareSettings{} }}, func(string) (string, bool) { return "", false })
}

type bareSettings struct{}

func (bareSettings) Validate() error { return nil }

func TestLimits(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]delivery.Lane{
		"rate_limit: 100/s":                 {RateLimit: delivery.Rate{Events: 100, Per: time.Second}},
		"rate_limit: 500/m, rate_burst: 20": {RateLimit: delivery.Rate{Events: 500, Per: time.Minute}, RateBurst: 20},
		"rate_limit: 10000/h":               {RateLimit: delivery.Rate{Events: 10_000, Per: time.Hour}},
		"rate_limit: 50000/d":               {RateLimit: delivery.Rate{Events: 50_000, Per: 24 * time.Hour}},
	} {
		c, err := limited(t, settings)
		if err != nil {
			t.Errorf("%s: %v", settings, err)
			continue
		}
		if got := c.Destinations[0]; got.RateLimit != want.RateLimit || got.RateBurst != want.RateBurst || got.Key() != nil {
			t.Errorf("%s: %+v, want %+v", settings, got.Lane, want)
		}
	}
	c, err := limited(t, "rate_limit: 1/s, rate_key: payload.customer")
	if err != nil {
		t.Fatal(err)
	}
	key, err := c.Destinations[0].Key()(&delivery.Candidate{Event: &delivery.Event{Payload: []byte(`{"customer":"c"}`)}})
	if err != nil || key != "c" {
		t.Error(key, err)
	}
}

func TestLimitMistakes(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"rate_limit: 5":                                       "has no unit: write 100/s, 500/m, 10000/h or 50000/d. The limit of a webhook for each host is host_rate_limit",
		"rate_limit: 5/w":                                     "not a rate: write 100/s",
		"rate_limit: 0/s":                                     "not a rate",
		"rate_limit: 2000000/s":                               "more than one a microsecond",
		"rate_burst: 5":                                       "rate_burst: has no effect without rate_limit",
		"rate_key: payload.x":                                 "rate_key: has no effect without rate_limit",
		"rate_limit: 1/s, rate_key: 'payload.'":               "rate_key",
		"rate_limit: 1/s, rate_key: event.created_at":         "must be a text or a whole number",
		"rate_limit: 1/s, rate_key: payload.x, order: total":  "order: total lets nothing go past",
		"expires_after: 1us":                                  `expires_after: "1us" is too small: the least is 1ms: write 0 for never`,
		"rate_limit: 1/s, rate_burst: -1, expires_after: 24h": "rate_burst",
		"rate_limit: {rate: 1/s}":                             "rate_limit",
	} {
		if _, err := limited(t, settings); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", settings, err, want)
		}
	}
}
