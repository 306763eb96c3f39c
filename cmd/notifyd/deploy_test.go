package main

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

const deployDir = "../../deploy"

// deployEnv is what the example configurations take from the environment.
func deployEnv() vars {
	return vars{
		"DATABASE_URL": "postgres://app:x@db.example.com/app", "WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"KAFKA_PASSWORD": "x", "AMQP_URL": "amqp://notifyd:x@rabbitmq.example.com/", "SMTP_PASSWORD": "x",
	}
}

// TestDeployConfigs checks every configuration file below deploy/.
func TestDeployConfigs(t *testing.T) {
	t.Parallel()
	credentials := t.TempDir()
	if err := os.WriteFile(filepath.Join(credentials, "database-password"), []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	checked := 0
	err := filepath.WalkDir(deployDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		text := testenv.ReadFile(t, path)
		if !strings.Contains(text, "\nversion: 1\n") {
			return nil // of another program
		}
		checked++
		text = strings.ReplaceAll(text, "/run/credentials/notifyd.service", credentials)
		if got := commandIn(t, deployEnv(), "check-config", "-c", file(t, text)); got.code != 0 || got.stderr != "" {
			t.Errorf("%s: %+v", path, got)
		}
		return nil
	})
	if err != nil || checked < 4 {
		t.Errorf("%d files checked, %v", checked, err)
	}
}

// TestDeployImage holds the Dockerfile against what it takes from elsewhere.
func TestDeployImage(t *testing.T) {
	t.Parallel()
	docker, module := testenv.ReadFile(t, deployDir+"/Dockerfile"), testenv.ReadFile(t, "../../go.mod")
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(module)
	if !strings.Contains(docker, " golang:"+version[1]+".") {
		t.Errorf("the image is not built with Go %s", version[1])
	}
	for _, want := range []string{
		"-X main.version=$VERSION -X main.commit=$COMMIT", "CGO_ENABLED=0", "distroless/static", "\nUSER 65532:65532\n", `CMD ["/usr/bin/notifyd", "healthcheck"]`,
	} {
		if !strings.Contains(docker, want) {
			t.Errorf("the Dockerfile lacks %q", want)
		}
	}
	// What the program is made of gets into the build, whatever is added.
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", ".")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	ignore := strings.Split(testenv.ReadFile(t, deployDir+"/Dockerfile.dockerignore"), "\n")
	for pkg := range strings.FieldsSeq(string(out)) {
		top, _, _ := strings.Cut(strings.TrimPrefix(pkg, "github.com/notifyd/notifyd/"), "/")
		if pkg != "github.com/notifyd/notifyd" && !slices.Contains(ignore, "!"+top) {
			t.Errorf("package %s is kept out of the build by Dockerfile.dockerignore", pkg)
		}
	}
}

// TestDeployChartFiles: the chart has links to the rules and the dashboard, and no copies. Helm reads files below the
// chart only, and packs what a link leads to.
func TestDeployChartFiles(t *testing.T) {
	t.Parallel()
	dir := deployDir + "/helm/notifyd/files"
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{"rules.yaml": "prometheus/rules.yaml", "dashboard.json": "grafana/notifyd.json"}
	if len(found) != len(sources) {
		t.Errorf("found %v, want %v", found, sources)
	}
	for name, source := range sources {
		if target, err := os.Readlink(filepath.Join(dir, name)); err != nil || target != "../../../"+source {
			t.Errorf("%s is not a link to %s: %q, %v", name, source, target, err)
		}
		if text := testenv.ReadFile(t, filepath.Join(dir, name)); text != testenv.ReadFile(t, deployDir+"/"+source) || text == "" {
			t.Errorf("%s and %s differ", name, source)
		}
	}
}

// TestDeployDashboardInputs does with the dashboard what Grafana does. Its import asks for each input, and puts the answer
// in its place. A provisioned dashboard is taken as it is: the variable is the one place that may name the input, since
// Grafana selects the first data source if no option has the value.
func TestDeployDashboardInputs(t *testing.T) {
	t.Parallel()
	text := testenv.ReadFile(t, deployDir+"/grafana/notifyd.json")
	var dashboard struct {
		ID     *int   `json:"id"`
		UID    string `json:"uid"`
		Inputs []struct {
			Name     string `json:"name"`
			Type     string `json:"type"`
			PluginID string `json:"pluginId"`
			Label    string `json:"label"`
		} `json:"__inputs"`
		Requires []struct {
			Type string `json:"type"`
			ID   string `json:"id"`
		} `json:"__requires"`
		Panels []struct {
			Type string `json:"type"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Name    string            `json:"name"`
				Type    string            `json:"type"`
				Query   any               `json:"query"`
				Current map[string]string `json:"current"`
			} `json:"list"`
		} `json:"templating"`
	}
	parse := func(text string) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), &dashboard); err != nil {
			t.Fatal(err)
		}
	}
	parse(text)
	if dashboard.ID != nil || dashboard.UID == "" {
		t.Errorf("provisioning needs a uid and no id: %q, %v", dashboard.UID, dashboard.ID)
	}
	if len(dashboard.Inputs) != 1 || dashboard.Inputs[0].Type != "datasource" || dashboard.Inputs[0].PluginID != "prometheus" || dashboard.Inputs[0].Label == "" {
		t.Fatalf("the import asks for %+v", dashboard.Inputs)
	}
	want := map[string]bool{"grafana/grafana": true, "datasource/prometheus": true}
	for _, p := range dashboard.Panels {
		want["panel/"+p.Type] = true
	}
	got := make(map[string]bool)
	for _, r := range dashboard.Requires {
		got[r.Type+"/"+r.ID] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("__requires lists %v, the dashboard uses %v", got, want)
	}
	variable := dashboard.Templating.List[0] // before those that it answers
	input := "${" + dashboard.Inputs[0].Name + "}"
	if variable.Type != "datasource" || variable.Query != "prometheus" || variable.Current["value"] != input {
		t.Errorf("the first variable is %+v", variable)
	}
	if n := strings.Count(text, input); n != len(variable.Current) {
		t.Errorf("%s stands in %d places, the variable has %d: the others find no data source if the dashboard is provisioned", input, n, len(variable.Current))
	}
	imported := strings.ReplaceAll(text, input, "uid-of-mine")
	parse(imported)
	if chosen := dashboard.Templating.List[0].Current["value"]; chosen != "uid-of-mine" {
		t.Errorf("the data source of the import is %q", chosen)
	}
	for _, m := range regexp.MustCompile(`\$\{([^}]*)\}`).FindAllStringSubmatch(imported, -1) {
		if m[1] != variable.Name {
			t.Errorf("nothing replaces %s", m[0])
		}
	}
	for _, m := range regexp.MustCompile(`"datasource": \{\s*"type": "([^"]*)",\s*"uid": "([^"]*)"\s*\}|"datasource": [^{]`).FindAllStringSubmatch(imported, -1) {
		if m[1] != "prometheus" || m[2] != "${"+variable.Name+"}" {
			t.Errorf("a data source is not that of the variable: %s", m[0])
		}
	}
}

// maxExposure is what "systemd-analyze security" may find at most, out of 100.
const maxExposure = "15"
