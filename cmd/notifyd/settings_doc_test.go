//go:build unix

package main

import (
	"crypto/x509"
	"encoding/pem"
	"maps"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestOperationsConnections counts the connections that docs/operations.md names.
func TestOperationsConnections(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, root+"docs/operations.md")
	for _, c := range []struct {
		mode, heading string
		names         int
	}{{"queue", "## Connections", 6}, {"stream", "### Those of a stream", 6}} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			countConnections(t, databaseOf(t, c.mode), page, c.heading, c.names)
		})
	}
}

// countConnections looks for each that a section names, and how many there are.
func countConnections(t *testing.T, url, page, heading string, names int) {
	t.Helper()
	s := newStage(t, url)
	s.relay(auditOnly)
	_, text, _ := strings.Cut(page, "\n"+heading+"\n")
	text, _, _ = strings.Cut(text, "\n#")
	ran, all := 0, map[string]string{}
	for _, m := range regexp.MustCompile("`(notifyd/[a-z]+)`").FindAllStringSubmatch(text, -1) {
		want := map[string]string{"notifyd/claim": "4", "notifyd/console": "0", "notifyd/calls": "0"}[m[1]] // no viewer, no large event
		if strings.Contains(heading, "stream") && (m[1] == "notifyd/notify" || m[1] == "notifyd/maintenance") {
			want = "0" // they are at rest
		}
		if want == "" {
			want = "1"
		}
		until(t, s.url, `SELECT count(*) = `+want+` FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, m[1])
		all[m[1]] = want
		ran++
	}
	until(t, s.url, `SELECT count(*) = `+strings.Join(slices.Collect(maps.Values(all)), " + ")+` FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'notifyd/%'`)
	if ran != names {
		t.Errorf("the page names %d", ran)
	}
	s.stop()
}

// TestConsolePage runs docs/console.md: a relay with each configuration, and the command.
func TestConsolePage(t *testing.T) {
	t.Parallel()
	testenv.Program(t, "curl")
	const token = "swordfishswordfish"
	s := newStage(t, database(t))
	s.own = strings.NewReplacer("0.0.0.0:9470", s.address, "127.0.0.1:9470", s.address)
	cert, key := selfSigned(t)
	s.write("tls/tls.crt", cert)
	s.write("tls/tls.key", key)
	s.run("export ADMIN_TOKEN=" + token + " VIEWER_TOKEN=viewer-" + token)

	serve := func(st step) {
		st.text = "version: 1\ndatabase: {url: '${env:DATABASE_URL}'}\ndestinations: {audit: {type: log}}\nroutes: [{match: '*', to: audit}]\n" + st.text
		s.serve(st)
	}
	shows := func(curl, says string) {
		s.command(step{text: "curl " + curl}, act{says: says})
	}
	const link = "127.0.0.1:9470/console/"
	s.follow("docs/console.md", map[string]act{
		"yaml 1": {run: serve, after: func(string) { shows("-sf http://"+link, `(?s)<title>.*audit`) }},
		"yaml 2": {run: serve, after: func(string) {
			shows("-skL https://"+link, `(?i)<input[^>]*type="password"`)
			shows("-skL -c cookies -b cookies -d token=viewer-"+token+" https://"+link+"login", `(?s)<span class="badge">read-only</span>.*audit`)
		}},
		"yaml 3": {run: serve, after: func(string) { shows("-sL http://"+link, `action="/ops/console/login"`) }},
		"yaml 4": {run: serve, after: func(string) {
			shows("-sf -H 'X-Forwarded-User: ann' http://"+link, `(?s)>ann<.*audit`)
			s.stop()
		}},
		`notifyd console --database-url "$DATABASE_URL"`: {
			as: "%s >address 2>console.log & until grep -s /console/ address; do sleep 0.05; done; curl -sf -o page $(cat address); kill $!; wait $!",
			after: func(string) {
				s.command(step{text: "cat page"}, act{says: `(?s)<title>.*No relay serves this console`})
			},
		},
	})
}

// TestMistakesPage makes the mistakes that docs/configuration.md shows the messages of.
func TestMistakesPage(t *testing.T) {
	t.Parallel()
	const config = `version: 1
database:
  url: ${env:DATABASE_URL}

# What is sent to whom.
destinations:
  audit:
    type: log

  events:
    type: kafka
    brokers: kafka.example.com
    topic: events
    topcis: events

  mail:
    type: email
    host: smtp.example.com
    timeout: 5 s
    username: shop
    password: ${env:SMTP_PASSWORD}
    from: shop@example.com
    to: "{{ .Payload.email }}"
    subject: Your order
    text: Thank you!
routes:
  - match: order.*
    to: [mial, events]
  - {match: "*", to: audit}
`
	s := newStage(t, "postgres://127.0.0.1:1/none")
	s.write("notifyd.yaml", config)
	want := ""
	for _, st := range steps(testenv.ReadFile(t, root+"docs/configuration.md")) {
		if st.heading == "Mistakes" && st.language == "text" {
			want = st.text
		}
	}
	if want == "" {
		t.Fatal("the page shows no mistakes")
	}
	s.command(step{text: "notifyd check-config"}, act{code: command.ExitConfig, shown: want})
}

// selfSigned returns a certificate for the loopback, and its key.
func selfSigned(t *testing.T) (cert, key string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	pair := server.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}
