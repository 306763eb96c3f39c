package config

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDurations(t *testing.T) {
	t.Parallel()
	cases := map[string]time.Duration{
		"0": 0, "0s": 0, "30s": 30 * time.Second, "7d": 7 * day, "1d12h": 36 * time.Hour, "1.5d": 36 * time.Hour,
		"1h30m": 90 * time.Minute, "100ms": 100 * time.Millisecond, "5µs": 5 * time.Microsecond, "1ns": 1,
	}
	for in, want := range cases {
		got, err := parseDuration(in)
		if err != nil || got != want {
			t.Errorf("parseDuration(%q) = %s, %v", in, got, err)
		}
		if again, err := parseDuration(formatDuration(want)); err != nil || again != want {
			t.Errorf("%s is printed as %q, which reads back as %s, %v", want, formatDuration(want), again, err)
		}
	}
	for _, in := range []string{"", "5", "-5s", "5 s", "1w", "s", "1e3s", "99999999d", "99999999999h", "106751d106751d", ".5s"} {
		if got, err := parseDuration(in); err == nil {
			t.Errorf("parseDuration(%q) = %s", in, got)
		}
	}
}

func TestMatchGrammar(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"*", "order.created", "order.*", "a.b.*", "a", "Größe/x:1", ".", "a..*"} {
		if err := checkMatch(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
	for _, bad := range []string{"", "**", "order*", "*.created", "a.*.b", ".*", "a.**", "a b", "a\n", "\x00", "*a"} {
		if err := checkMatch(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestSuggestions(t *testing.T) {
	t.Parallel()
	cases := []struct{ word, want string }{
		{"topcis", ` (did you mean "topics"?)`},
		{"TOPICS", ` (did you mean "topics"?)`},
		{"batc", ` (did you mean "batch"?)`},
		{"zzzzzzzz", " (known: topics, batch)"},
		{strings.Repeat("x", 1000), " (known: topics, batch)"},
	}
	for _, c := range cases {
		if got := suggest(c.word, []string{"topics", "batch"}); got != c.want {
			t.Errorf("suggest(%.20q) = %q", c.word, got)
		}
	}
	if got := suggest("x", nil); got != "" {
		t.Errorf("without candidates: %q", got)
	}
}

func TestRedactConnection(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"":                                    "",
		"postgres://u:p@h:5432/db":            "postgres://u:${redacted}@h:5432/db",
		"postgres://u@h/db":                   "postgres://u@h/db",
		"postgres://h/db":                     "postgres://h/db",
		"postgres://u:p@w@h/db":               "postgres://u:${redacted}@h/db",
		"postgres://u:p/w@h/db":               "postgres://u:${redacted}@h/db",
		"postgres://u:1/w@h/db":               "postgres://u:${redacted}@h/db",
		"postgres://u:p?w@h/db":               "postgres://u:${redacted}@h/db",
		"postgres://u:p#w@h/db":               "postgres://u:${redacted}@h/db",
		"postgres://h/db?password=p&x=1":      "postgres://h/db?password=${redacted}&x=1",
		"host=h password=p dbname=d":          "host=h password=${redacted} dbname=d",
		"host=h PASSWORD = 'p q' dbname=d":    "host=h PASSWORD = ${redacted} dbname=d",
		`password='a\' b' host=h`:             "password=${redacted} host=h",
		`password=a\ b host=h`:                "password=${redacted} host=h",
		"password='open secret":               "password=${redacted}",
		"sslpassword=p host=h":                "sslpassword=${redacted} host=h",
		"just a password":                     "${redacted}",
		"postgres://u:p?w@h/db?password=two":  "postgres://u:${redacted}@h/db?password=${redacted}",
		"postgres://u:p@h/d?x=a@b&password=p": "postgres://u:${redacted}@b&password=${redacted}",
	}
	for in, want := range cases {
		if got := redactConnection(in); got != want {
			t.Errorf("redactConnection(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestRedactText: an apparent secret in the text of a file is hidden, and nothing
// else, because the text has to be accepted as input again.
func TestRedactText(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"":                                  "",
		"https://h/orders/v2":               "https://h/orders/v2",
		"https://h:8443/a?b=c#d":            "https://h:8443/a?b=c#d",
		"https://u:p@h/x":                   "https://u:${redacted}@h/x",
		"https://u:${env:P}@h/":             "https://u:${env:P}@h/",
		"https://ghp16C7e42F292c6912E7@h/x": "https://${redacted}@h/x",
		"https://hooks.slack.com/services/T/B/secret":                "https://hooks.slack.com/services/${redacted}/${redacted}/${redacted}",
		"https://gateway.example.com/services/T000/B000/XXXX":        "https://gateway.example.com/services/${redacted}/${redacted}/${redacted}",
		"https://hooks.slack.com/services/${env:HOOK}":               "https://hooks.slack.com/services/${env:HOOK}",
		"https://discord.com/api/webhooks/12/abc":                    "https://discord.com/api/${redacted}/${redacted}/${redacted}",
		"https://h/in/8f14e45fceea167a5a36dedd4bea2543":              "https://h/in/${redacted}",
		"https://h/in/550e8400-e29b-41d4-a716-446655440000/x":        "https://h/in/${redacted}/x",
		"https://h/in/s3cret":                                        "https://h/in/${redacted}",
		"https://h/in/a1b2c3d4/x":                                    "https://h/in/${redacted}/x",
		"https://h/in/483920174839":                                  "https://h/in/483920174839", // may be an account of AWS
		"https://h/in/4839201748":                                    "https://h/in/${redacted}",
		"https://h/in/QXPTKZWM":                                      "https://h/in/${redacted}",
		"https://h/in/qxPtKzWm":                                      "https://h/in/${redacted}",
		"https://h/in/abcdefghijklmnopqrstuvwxyz":                    "https://h/in/${redacted}",
		"https://h/in/to%20ken":                                      "https://h/in/${redacted}",
		"https://h/in/${env:A}-s3cret":                               "https://h/in/${redacted}",
		"https://h/in/${env:A}-{{ .Event.ID }}.json":                 "https://h/in/${env:A}-{{ .Event.ID }}.json",
		"https://h/apis/ccompat/v7/oauth2/webhookEvents/v2beta1":     "https://h/apis/ccompat/v7/oauth2/webhookEvents/v2beta1",
		"https://h/orders-2026-export-of-all/{{ .Payload.shop }}":    "https://h/orders-2026-export-of-all/{{ .Payload.shop }}",
		"https://h:80/x?mail=a@b&token=hunter2&shop=main":            "https://h:${redacted}@b&token=${redacted}&shop=main",
		"https://h/x?token=hunter2&shop=main&key=k":                  "https://h/x?token=${redacted}&shop=main&key=${redacted}",
		"https://h/x?token=${env:T}&q={{ .Payload.a }}":              "https://h/x?token=${env:T}&q={{ .Payload.a }}",
		"https://sqs.eu-central-1.amazonaws.com/123456789012/orders": "https://sqs.eu-central-1.amazonaws.com/123456789012/orders",
		"${env:URL:-https://u:p@h/x}":                                "${env:URL}",
		"${env:URL:-https://h/x}":                                    "${env:URL:-https://h/x}",
		"$${env:A} costs $$5":                                        "$${env:A} costs $$5",
		"See https://shop.example.com/help: write to a@b.example":    "See https://shop.example.com/help: write to a@b.example",
		`{"hook": "https://hooks.slack.com/services/T/B/s", "n": 1}`: `{"hook": "https://hooks.slack.com/services/${redacted}/${redacted}/${redacted}", "n": 1}`,
	}
	for in, want := range cases {
		if got := redact(in, redactText); got != want {
			t.Errorf("redactText(%q)\n got %q\nwant %q", in, got, want)
		}
	}
}

func TestRedactSecretAndNamed(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"${env:P}":                          "${env:P}",
		"${file:/run/secrets/p}":            "${file:/run/secrets/p}",
		"${env:P:-hunter2}":                 "${env:P}",
		"hunter2${env:P}":                   "${redacted}",
		"hunter2":                           "${redacted}",
		"none":                              "none",
		"nonetheless":                       "${redacted}",
		"whsec_${env:P}":                    "whsec_${env:P}",
		"whsec_hunter2":                     "${redacted}",
		"amqp://u:hunter2@h/v":              "amqp://u:${redacted}@h/v",
		"https://hooks.slack.com/x":         "${redacted}",
		"":                                  "",
		"amqp://u:${env:P}@h/v":             "amqp://u:${env:P}@h/v",
		"amqp://u:hunter${env:P}@h/v":       "amqp://u:${redacted}@h/v",
		"${env:U:-amqp://localhost}":        "${env:U:-amqp://localhost}",
		"${env:U:-amqp://u:p@localhost}":    "${env:U}",
		"https://h/${env:PATH}":             "https://h/${env:PATH}",
		"https://h/s3cret${env:PATH}":       "${redacted}",
		"http://proxy:${env:P}@h:3128":      "http://proxy:${env:P}@h:3128",
		"https://h/services/${env:A}/plain": "${redacted}",
	} {
		if got := redact(in, redactSecret); got != want {
			t.Errorf("redactSecret(%q) = %q, want %q", in, got, want)
		}
	}
	for _, c := range []struct{ name, in, want string }{
		{"Authorization", "Bearer hunter2", "Bearer ${redacted}"},
		{"authorization", "Bearer ${env:TOKEN}", "Bearer ${env:TOKEN}"},
		{"Authorization", "hunter2", "${redacted}"},
		{"X-Whatever", "Basic dTpw", "Basic ${redacted}"},
		{"X-Api-Key", "k", "${redacted}"},
		{"Cookie", "a=b; c=d", "${redacted} ${redacted}"},
		{"X-Token", "{{ .Payload.token }}", "{{ .Payload.token }}"},
		{"X-Shop", "main", "main"},
		{"X-Shop", "8f14e45fceea167a5a36dedd4bea2543", "${redacted}"},
		{"x-dead-letter-routing-key", "late", "late"},
		{"Idempotency-Key", "{{ .Event.ID }}", "{{ .Event.ID }}"},
		{"Link", "<https://u:p@h/x>; rel=a", "<https://u:${redacted}@h/x>; rel=a"},
	} {
		if got := redact(c.in, func(s string) string { return redactNamed(c.name, s) }); got != c.want {
			t.Errorf("%s: %s is shown as %q, want %q", c.name, c.in, got, c.want)
		}
	}
}

func TestScrub(t *testing.T) {
	t.Parallel()
	values := []string{"smtp://u:hunter2@h:99x", "ab", "two words", "q\"uote"}
	cases := map[string]string{
		`parse "smtp://u:hunter2@h:99x": bad`: `parse "[redacted]": bad`,
		`invalid port ":99x" after host`:      `invalid port ":[redacted]" after host`,
		"unknown host hunter2.":               "unknown host [redacted].",
		"ab is not about":                     "[redacted] is not about",
		"two words are two":                   "[redacted] are two",
		"u is not a path of h":                "u is not a path of h",
		`port ":99x": hunter2:u`:              `port ":[redacted]": [redacted]:u`,
		`the value "q\"uote" is bad`:          `the value "[redacted]" is bad`,
		"nothing here":                        "nothing here",
	}
	for in, want := range cases {
		got := scrub(in, "", values)
		if got != want {
			t.Errorf("scrub(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestScrubKeepsOurWords: what a mistake says by itself stays, although the secret
// begins with it, or is no more than that.
func TestScrubKeepsOurWords(t *testing.T) {
	t.Parallel()
	const form = `must be whsec_ and base64: make %s with: echo "whsec_$(openssl rand -base64 32)"`
	for _, secret := range []string{"whsec_hunter2", "whsec_", "hunter2", "one"} {
		want := strings.ReplaceAll(form, "%s", "one")
		if secret == "one" { // the word came from elsewhere
			want = strings.ReplaceAll(form, "%s", "[redacted]")
		}
		if got := scrub(strings.ReplaceAll(form, "%s", "one"), form, []string{secret}); got != want {
			t.Errorf("%s: %s", secret, got)
		}
	}
	if got := scrub("must be amqp://, not hunter2", "must be amqp://, not %s", []string{"amqp://u:hunter2"}); got != "must be amqp://, not [redacted]" {
		t.Error(got)
	}
}

// TestScrubConnections: of a connection string no message shows the secrets, even those that a parser tears out of
// it, and every message keeps its words.
func TestScrubConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ value, message, want string }{
		{"postgres://notifyd:hush5@h/db", "is not an e-mail address: use notify, h or db, as notifyd", "is not an e-mail address: use notify, h or db, as notifyd"},
		{"postgres://notifyd:hush5@h/db", "cannot log in as notifyd:hush5, with hush5", "cannot log in as [redacted], with [redacted]"},
		{"postgres://u:pa/ss word@h", `invalid port ":pa" after host`, `invalid port ":[redacted]" after host`},
		{"postgres://u:p%40ss@h", "no such user: p@ss", "no such user: [redacted]"},
		{"postgres://u:what?ever@h/db", `no host "ever"`, `no host "[redacted]"`},
		{"postgres://u:hush5", `invalid port ":hush5" after host`, `invalid port ":[redacted]" after host`},
		{"postgres://h:5432/db?password=hush5&user=shop", "hush5 of shop at 5432", "[redacted] of shop at 5432"},
		{"host=h user=shop password='hu sh' dbname=db", "shop at h: hu sh", "shop at h: [redacted]"},
		{"https://hooks.slack.com/services/T0/B0/xyz9", "no xyz9 at hooks.slack.com", "no [redacted] at hooks.slack.com"},
		{"https://h/x?mail=a@b.example", "a mail to b.example of x", "a mail to b.example of x"},
		{"nats://t0ken@h", "t0ken is refused", "[redacted] is refused"},
	} {
		if got := scrub(c.message, "", []string{c.value}); got != c.want {
			t.Errorf("%s: %q became %q, want %q", c.value, c.message, got, c.want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	for _, seed := range []string{"", "$", "$$", "${", "${env:A}", "a${env:B:-c}$$d", "${file:/etc/hostname}", "${A}", "${env:A:-${env:B}}"} {
		f.Add(seed, "value")
	}
	f.Fuzz(func(t *testing.T, in, value string) {
		x := &expander{dir: t.TempDir(), lookup: func(string) (string, bool) { return value, true }}
		in = strings.ReplaceAll(in, "file:", "f:")
		out, used, errs := x.expand(in)
		if !used && len(errs) == 0 && !strings.Contains(in, "$$") && out != in {
			t.Errorf("%q became %q", in, out)
		}
		if escaped, _, errs := x.expand(escape(in)); len(errs) == 0 && strings.Contains(in, "${") && escaped != in {
			t.Errorf("escape(%q) reads back as %q", in, escaped)
		}
	})
}

func FuzzDuration(f *testing.F) {
	f.Add(int64(0))
	f.Add(int64(math.MaxInt64))
	f.Add(int64(90 * time.Minute))
	f.Fuzz(func(t *testing.T, n int64) {
		d := time.Duration(n & math.MaxInt64)
		if got, err := parseDuration(formatDuration(d)); err != nil || got != d {
			t.Errorf("%d: %q reads back as %d, %v", d, formatDuration(d), got, err)
		}
	})
}

// ForgetPlaces makes configurations comparable whose destinations are on different lines.
func ForgetPlaces(c *Config) {
	c.file, c.root = "", nil
	for i := range c.Routes {
		c.Routes[i].place = ""
	}
}

// TestInlinedKeysAreShared: a key of an inlined struct that another struct has too is one setting, and is decoded into both.
func TestInlinedKeysAreShared(t *testing.T) {
	t.Parallel()
	var lane struct {
		Batch int `yaml:"batch"`
	}
	var own struct {
		Lane struct {
			Batch int `yaml:"batch"`
			Other int `yaml:"other"`
		} `yaml:",inline"`
	}

	all := settingsOf(reflect.ValueOf(&lane).Elem(), reflect.ValueOf(&own).Elem())
	if len(all) != 2 || len(settingOf(all, "batch").targets) != 2 {
		t.Errorf("got %v", all)
	}
}
