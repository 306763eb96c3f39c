package email

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// TestGreetingName: the greeting has a domain whenever the configuration or the machine has one.
func TestGreetingName(t *testing.T) {
	t.Parallel()
	const shop = "Shop <shop@example.com>"
	for name, c := range map[string]struct{ helo, from, machine, want string }{
		"configured":                  {"relay", shop, "a.example.net", "relay"},
		"machine with a domain":       {"", shop, "a.example.net", "a.example.net"},
		"container":                   {"", shop, "4f1c2ab03d5e", "example.com"},
		"machine without a name":      {"", "shop@example.com", "", "example.com"},
		"domain outside of ASCII":     {"", "shop@läden.example", "shop", "xn--lden-loa.example"},
		"name made of the event":      {"", "{{ .Payload.shop }} <{{ .Payload.id }}@example.com>", "shop", "example.com"},
		"domain made of the event":    {"", "shop@{{ .Payload.domain }}", "shop", "shop"},
		"sender made by a function":   {"", `{{ address .Payload.name "shop@example.com" }}`, "shop", "shop"},
		"sender of this machine":      {"", "shop@localhost", "shop", "shop"},
		"nothing has a name":          {"", "shop@localhost", "", "localhost"},
		"machine named only by a dot": {"", shop, "shop.", "example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := greetingOf(Config{HELO: c.helo, From: c.from}, c.machine); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestGreetingIsSent: the server gets the name.
func TestGreetingIsSent(t *testing.T) {
	t.Parallel()
	s := testenv.Mail(t, smtpsink.Options{})
	s.Fail(smtpsink.Fault{Stage: smtpsink.Ehlo, Match: "mx.example.com", Code: 421, Text: "4.3.2 so this is the name"})
	cfg := config(s)
	cfg.HELO = "mx.example.com"
	h := deliverytest.Open(t, New, cfg)
	err := h.Deliver(testenv.Within(t, patience), event(ada))
	if err == nil || !strings.Contains(err.Error(), "so this is the name") {
		t.Errorf("got %v", err)
	}
}

// TestGreetingWarning: a configured name without a dot is a warning, which is no mistake.
func TestGreetingWarning(t *testing.T) {
	t.Parallel()
	for helo, want := range map[string]string{
		"relay":              "helo: has no dot, and many servers refuse every mail after such a greeting: set helo to the full name",
		"relay.example.com":  "",
		"[IPv6:2001:db8::1]": "",
	} {
		cfg := Config{Host: "smtp.example.com", HELO: helo, From: "shop@example.com", To: List{"a@example.com"}, Subject: "x", Text: "x"}
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", helo, err)
		}
		got := ""
		if err := cfg.Warnings(); err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", helo, got, want)
		}
	}
}
