package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/smtpsink"
)

// notURL is the message about a connection string that cannot be read.
func notURL(reason string) string {
	return "not a connection string: " + reason +
		": write postgres://user:password@host:5432/database, with special characters of the password in percent form (%40 for @)"
}

// mailWith is a configuration with one mail destination that lacks something.
func mailWith(settings string) string {
	return "version: 1\ndestinations:\n  mail:\n    type: email\n    host: localhost\n    from: shop@example.com\n" +
		settings + "routes: [{match: '*', to: mail}]\n"
}

// TestConfigMistakes: every mistake is reported with its place and its cure, by
// check-config and by run alike, before anything is contacted.
func TestConfigMistakes(t *testing.T) {
	t.Parallel()
	const to, subject, text = "    to: ann@example.com\n", "    subject: Hello\n", "    text: Hello\n"
	const cure = "close every {{ with }} and write text in double quotes, as in {{ date \"2006-01-02\" .Event.CreatedAt }}"
	for name, c := range map[string]struct{ yaml, want string }{
		"malformed": {
			"version: 1\ndestinations:\n  mail: {type: log\nroutes: []\n",
			":4:7: not valid YAML: did not find expected ',' or '}' while parsing a flow mapping that starts on line 3",
		},
		"tab": {
			"version: 1\ndestinations:\n\tmail: {type: log}\n",
			":3:1: not valid YAML: found character that cannot start any token while scanning for the next token (indent with spaces, not with tabs)",
		},
		"unknown key": {
			mailWith(to + subject + text + "    topcis: x\n"),
			":10:5: unknown key \"topcis\" in destinations.mail",
		},
		"unknown type": {
			"version: 1\ndestinations:\n  mail:\n    type: emial\nroutes: [{match: '*', to: mail}]\n",
			":4:11: unknown destination type \"emial\" in destinations.mail (did you mean \"email\"?)",
		},
		"unknown destination": {
			"version: 1\ndestinations:\n  mail: {type: log}\nroutes:\n  - {match: a, to: mail}\n  - {match: b, to: mial}\n",
			":6:20: routes.1.to.0: there is no destination \"mial\" (did you mean \"mail\"?)",
		},
		"template of a subject": {
			mailWith(to + "    subject: 'Order {{ .Payload.order'\n" + text),
			":8:14: destinations.mail.subject: template \"subject\", line 1: unclosed action: " + cure,
		},
		"template of a text": {
			mailWith(to + subject + "    text: |\n      one\n      {{ if .Payload.x }}\n"),
			":9:11: destinations.mail.text: template \"text\", line 3: unexpected EOF: close every {{if}}, {{range}}, {{with}} and {{define}} with {{end}}",
		},
		"template of a body in HTML": {
			mailWith(to + subject + "    html: '<a href=\"{{ .Payload.x }}'\n"),
			":9:11: destinations.mail.html: template \"html\", line 1: ",
		},
		"no recipient": {
			mailWith(subject + text),
			":3:3: destinations.mail.to: missing: name a recipient, such as {{ .Payload.email }}",
		},
		"empty recipient": {
			mailWith("    to: ' '\n" + subject + text),
			":7:9: destinations.mail.to: is empty: name a recipient, or take it out",
		},
		"recipient without address": {
			mailWith("    to: ann\n" + subject + text),
			":7:9: destinations.mail.to: is not an e-mail address: write a@example.com, or Name <a@example.com>, with commas between several",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := file(t, c.yaml)
			got := invoke(t, "check-config", "-c", path)
			if got.code != 78 || got.stdout != "" || !strings.HasPrefix(got.stderr, path+c.want) || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("got  %+v\nwant %s", got, c.want)
			}
			if again := invoke(t, "run", "-c", path); again != got {
				t.Errorf("run says something else: %+v", again)
			}
		})
	}
}

// TestTemplateFiles: mistakes are in other files, and the messages say where the folder is named, all at once.
func TestTemplateFiles(t *testing.T) {
	t.Parallel()
	path := file(t, mailWith("    to: ann@example.com\n    subject: Hello\n    templates: mail\n    text: order.txt\n"))
	folder := filepath.Join(filepath.Dir(path), "mail")
	testenv.WriteFile(t, filepath.Join(folder, "order.txt"), "one\n{{ end }}\n")
	testenv.WriteFile(t, filepath.Join(folder, "other.html"), "\n\n{{ template \"nothing\" . }}")
	at := path + ":9:16: destinations.mail.templates: template "
	want := at + "\"order.txt\", line 2: unexpected {{end}}: remove it, or open an {{if}}, {{range}} or {{with}} before it\n" +
		at + "\"other.html\", line 3: there is no template \"nothing\": call a file of templates by its name without the ending, or what the same file or its layout defines\n"
	if got := invoke(t, "check-config", "-c", path); got != (result{78, "", want}) {
		t.Errorf("got  %+v\nwant %s", got, want)
	}
}

// TestEventMistakes: an event that a mail cannot be made of is a dead letter
// that says why.
func TestEventMistakes(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	url, sink := database(t), testenv.Mail(t, smtpsink.Options{TLS: smtpsink.NoTLS})
	yaml := shopConfig(url, sink.Port())
	maybe := strings.Replace(yaml, "{{ .Payload.email }}", "{{ get .Payload `email` | default `` }}", 1)
	d := startDaemon(t, nil, "run", "-c", file(t, yaml))
	absent := ": the event has no such field: fix the event, or use get and default for a field that may be absent"
	for _, c := range []struct{ payload, want string }{
		{`{"email": "ann@example.com"}`, `email: template "subject", line 1, at {{ .Payload.order }}` + absent},
		{`{"order": 7}`, `email: template "to", line 1, at {{ .Payload.email }}` + absent},
		{`{"order": 7, "email": "ann"}`, `email: the output of template "to" is not an e-mail address: write a@example.com, or Name <a@example.com>, with commas between several`},
		{`{"order": 7, "email": ""}`, "email: no recipient: to: {{ .Payload.email }} yields none: fix the event, or the template"},
	} {
		if got := deadLetter(t, url, publishTo(t, url, "order.placed", c.payload)); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.payload, got, c.want)
		}
	}
	d.end(t)
	startDaemon(t, nil, "run", "-c", file(t, maybe))
	if got := deadLetter(t, url, publishTo(t, url, "order.placed", `{"order": 7}`)); got != "email: no recipient: to: {{ get .Payload `email` | default `` }} yields none: fix the event, or the template" {
		t.Errorf("got %s", got)
	}
	if n := len(sink.Mails()); n != 0 {
		t.Errorf("%d mails were sent", n)
	}
}

// TestBadURL: each command says where the connection string stands, and
// nothing of what is in it.
func TestBadURL(t *testing.T) {
	t.Parallel()
	const spaces = "failed to parse as URL (unexpected spaces found in password, use percent-encoded spaces (%20) instead)"
	for _, c := range []struct{ key, url, reason string }{
		{"url", "postgres://u:marker@h:54x/db", "invalid port"},
		{"url", "postgres://u:mar@ker@h/db", "it has more than one @"},
		{"url", "postgres://u:mar@ker/x@h/db?sslmode=disable", "it has more than one @"},
		{"url", "postgres://u:mar ker@h/db", spaces},
		{"url", "postgres://u:marker@h/db?sslmode=loud", "failed to configure TLS (sslmode is invalid)"},
		{"url", "host=h password=mar ker", "failed to parse as keyword/value (invalid keyword/value)"},
		{"url", "postgres://u:marker@h/db?pool_max_conns=x", `cannot parse pool_max_conns (strconv.ParseInt: parsing "x": invalid syntax)`},
		{"listen_url", "postgres://u:marker@h:54x/db", "invalid port"},
	} {
		path := file(t, fmt.Sprintf("%sdatabase: {%s: \"%s\"}\n", good, c.key, c.url))
		want := fmt.Sprintf("%s:4:%d: database.%s: ", path, 14+len(c.key), c.key) + notURL(c.reason)
		for _, args := range [][]string{{"run"}, {"check-config"}} {
			if got := invoke(t, append(args, "-c", path)...); got.code != command.ExitConfig || got.stdout != "" || got.ended() != want {
				t.Errorf("%s: %s:\ngot  %+v\nwant %s", args, c.url, got, want)
			}
		}
	}
	path := file(t, `{version: 1, database: {url: "postgres://u:marker@h:x/db"}}`)
	for _, args := range [][]string{{"migrate"}, {"migrate", "status"}, {"publish", "x"}} {
		want := result{78, "", path + ":1:30: database.url: " + notURL("invalid port") + "\n"}
		if got := invoke(t, append(args, "-c", path)...); got != want {
			t.Errorf("%s: got %+v", args, got)
		}
		want = result{78, "", "$DATABASE_URL: " + notURL("invalid port") + "\n"}
		if got := commandIn(t, vars{"DATABASE_URL": "postgres://u:marker@h:x/db"}, args...); got != want {
			t.Errorf("%s: got %+v", args, got)
		}
		got := invoke(t, append(args, "--database-url", "postgres://u:marker@h:x/db")...)
		if got.code != command.ExitUsage || !strings.HasPrefix(got.stderr, "notifyd: --database-url: "+notURL("invalid port")+"\nsee notifyd ") {
			t.Errorf("%s: got %+v", args, got)
		}
	}
}

// TestUnreachable: run waits, and the other commands fail.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	url := fmt.Sprintf("postgres://u:marker@127.0.0.1:%d/db", testenv.FreePort(t))
	d := startDaemon(t, nil, "run", "-c", file(t, fmt.Sprintf("{version: 1, database: {url: '%s'}}", url)))
	d.stderr.await(t, "connection refused")
	got := invoke(t, "migrate", "--database-url", url)
	if got.code != 1 || !strings.HasPrefix(got.stderr, "notifyd: failed to connect to `user=u database=db`: ") ||
		!strings.HasSuffix(got.stderr, "connection refused: start the server, or fix the connection string\n") || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("got %+v", got)
	}
	if code := d.end(t); code != 0 || strings.Count(d.stderr.text(), "does not answer") != 1 {
		t.Errorf("exit code %d: %s", code, d.stderr.text())
	}
	if all := d.stderr.text() + got.stderr; strings.Contains(all, "marker") {
		t.Errorf("the password is shown:\n%s", all)
	}
}

func TestSchemaMistakes(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	path := file(t, fmt.Sprintf("version: 1\ndatabase: {url: \"%s\"}\n", url))
	said := func(args ...string) string {
		t.Helper()
		got := invoke(t, append(args, "-c", path)...)
		if got.code != 1 {
			t.Errorf("%s: %+v", args, got)
		}
		return strings.TrimPrefix(got.ended(), "notifyd: ")
	}
	latest := fmt.Sprint(len(regexp.MustCompile(`(?m)^\d`).FindAllString(invoke(t, "migrate", "status", "-c", path).stdout, -1)))
	if got, want := said("run"), "schema \"public\" has no tables of notifyd: run `notifyd migrate`, or call outboxsql.Migrate: schema is not migrated"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	invoke(t, "migrate", "-c", path)
	execute(t, url, "INSERT INTO outbox_migrations (version, name) VALUES (999, 'from the future')")
	newer := "schema \"public\" is at version 999, this notifyd knows " + latest + ": upgrade notifyd: schema is newer than this notifyd"
	for _, c := range []struct{ args, want string }{
		{"run", newer},
		{"migrate status", newer},
		{"migrate", "migrate schema \"public\": " + newer},
	} {
		if got := said(strings.Fields(c.args)...); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.args, got, c.want)
		}
	}
}

// TestMalformedSecretIsDescribed: the message says what form the secret must have, though
// the secret has a part of those words, and nothing of the secret.
func TestMalformedSecretIsDescribed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ settings, want string }{
		{"type: webhook, url: https://h.example.com, signing_secrets: [whsec_marker]", "must be whsec_ and base64: make one with: echo \"whsec_$(openssl rand -base64 32)\""},
		{"type: webhook, url: https://h.example.com, signing_secrets: [whsec_]", "must be of 24 to 64 bytes"},
		{"type: rabbitmq, routing_key: q, url: \"amqpx://marker\"", "must begin with amqp:// or amqps://"},
		{"type: slack, text: t, channel: C1, token: xapp-marker", "is an app-level token, which cannot post: give the bot token, xoxb-..."},
	} {
		got := invoke(t, "check-config", "-c", file(t, "version: 1\ndestinations: {a: {"+c.settings+"}}\nroutes: [{match: '*', to: a}]\n"))
		if got.code != command.ExitConfig || !strings.Contains(got.stderr, c.want) || strings.Contains(got.stderr, "marker") {
			t.Errorf("%s: %+v", c.settings, got)
		}
	}
}

// placed is the place in a file at which a part of its text begins, such as "notifyd.yaml:3:14".
func placed(path, text, part string) string {
	before, _, _ := strings.Cut(text, part)
	line := before[strings.LastIndex(before, "\n")+1:]

	return fmt.Sprintf("%s:%d:%d", path, strings.Count(before, "\n")+1, len(line)+1)
}
