package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestEmailPage: docs/destinations/email.md shows files of examples/mail as they are, its command prints what it shows, and
// its table has what the mails of the example have.
func TestEmailPage(t *testing.T) {
	t.Parallel()
	page := testenv.ReadFile(t, root+"docs/destinations/email.md")
	files := regexp.MustCompile("(?ms)^`(mail/[\\w./]+)`:\n\n```text\n(.*?)^```$").FindAllStringSubmatch(page, -1)
	for _, file := range files {
		if text := testenv.ReadFile(t, root+"examples/mail/"+file[1]); text != file[2] {
			t.Errorf("the page shows another %s than examples/mail:\n%s", file[1], text)
		}
	}
	if len(files) != 2 {
		t.Errorf("%d files", len(files))
	}

	config := testenv.ReadFile(t, root+"examples/mail/notifyd.yaml")
	_, section, _ := strings.Cut(page, "\n## Templates in files\n")
	_, shown, _ := strings.Cut(section, "```yaml\n")
	shown, _, _ = strings.Cut(shown, "```")
	if !strings.Contains(config, shown) {
		t.Errorf("the page shows another configuration than examples/mail:\n%s", config)
	}

	s := newStage(t, "postgres://127.0.0.1:1/none")
	if err := os.CopyFS(s.dir, os.DirFS(root+"examples/mail")); err != nil {
		t.Fatal(err)
	}
	s.follow("docs/destinations/email.md", map[string]act{
		"notifyd template test --destination placed --event event.json --open": {after: func(printed string) {
			if err := os.Remove(strings.TrimSpace(printed)); err != nil {
				t.Error(err)
			}
		}},
	})

	if err := os.Remove(s.dir + "/mail/order/shipped.de.html"); err != nil {
		t.Fatal(err)
	}
	checked := commandIn(t, vars{"DATABASE_URL": s.url}, "check-config", "-c", s.dir+"/notifyd.yaml")
	const warning = "warning: destinations.shipped.templates: order/shipped.html is not translated into de, as other files of the folder are: " +
		"the default file takes its place\n"
	if checked.code != 0 || !strings.HasSuffix(checked.stderr, warning) || strings.Count(checked.stderr, "\n") != 1 {
		t.Errorf("got %+v", checked)
	}

	rows := regexp.MustCompile("(?m)^\\| `(de-AT|de|en-GB)` \\| .* \\| `(.*)`, `(.*)` \\|$").FindAllStringSubmatch(section, -1)
	for _, row := range rows {
		event := strings.Replace(testenv.ReadFile(t, root+"examples/mail/event.json"), `"de-AT"`, `"`+row[1]+`"`, 1)
		s.write("other.json", event)
		r := commandIn(t, vars{"DATABASE_URL": s.url}, "template", "test", "--open", "-c", s.dir+"/notifyd.yaml", "--destination", "placed", "--event", s.dir+"/other.json")
		path := strings.TrimSpace(r.stdout)
		html := strings.ReplaceAll(testenv.ReadFile(t, path), "\u00a0", " ")
		if !strings.Contains(html, row[2]) || !strings.Contains(html, row[3]) {
			t.Errorf("%s: %s or %s is not in\n%s", row[1], row[2], row[3], html)
		}
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	if len(rows) != 3 {
		t.Errorf("%d rows", len(rows))
	}
}
