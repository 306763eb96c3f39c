package check

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// compose loads the file as "docker compose" does, with these variables in the environment.
func compose(t *testing.T, env ...string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../compose/compose.yaml"}, cli.WithEnv(env), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

func TestCompose(t *testing.T) {
	t.Parallel()
	const image = "registry.example.com/notifyd:0.1.0"
	project, err := compose(t, "NOTIFYD_IMAGE="+image)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"migrate", "notifyd"} {
		if s := project.Services[name]; s.Image != image || s.Build != nil {
			t.Errorf("%s runs %q, built by %+v", name, s.Image, s.Build)
		}
	}
	for name, s := range project.Services {
		if s.Image != image && !regexp.MustCompile(`^[\w./-]+:v?\d[\w.]*@sha256:[0-9a-f]{64}$`).MatchString(s.Image) {
			t.Errorf("%s runs %q, an image without a tag and a digest", name, s.Image)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s is published to everyone: %+v", name, p)
			}
		}
		switch check := s.HealthCheck; {
		case check == nil:
			t.Errorf("%s has no health check", name)
		case check.Disable && name != "migrate", !check.Disable && len(check.Test) < 2:
			t.Errorf("%s: %+v", name, check)
		}
	}
	if got := project.Services["notifyd"].HealthCheck.Test; !slices.Equal(got, []string{"CMD", "/usr/bin/notifyd", "healthcheck"}) {
		t.Errorf("the health check of the relay is %q", got)
	}
	for on, want := range map[string]string{"migrate postgres": types.ServiceConditionHealthy, "notifyd migrate": types.ServiceConditionCompletedSuccessfully} {
		who, what, _ := strings.Cut(on, " ")
		if got := project.Services[who].DependsOn[what].Condition; got != want {
			t.Errorf("%s: %q, want %q", on, got, want)
		}
	}
	if url := project.Services["notifyd"].Environment["DATABASE_URL"]; url == nil || !strings.HasPrefix(*url, "postgres://app:app@postgres:5432/") {
		t.Error("the relay has no database")
	}
	for _, v := range project.Services["notifyd"].Volumes {
		if _, err := os.Stat(v.Source); err != nil {
			t.Error(err)
		}
	}
}

// TestComposeWithoutImage: whoever names no image is told how to build one.
func TestComposeWithoutImage(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{nil, {"NOTIFYD_IMAGE="}} {
		_, err := compose(t, env...)
		if err == nil || !strings.Contains(err.Error(), "NOTIFYD_IMAGE") || !strings.Contains(err.Error(), "docker build -f deploy/Dockerfile -t notifyd:0.1.0 .") {
			t.Errorf("%q: %v", env, err)
		}
	}
}

// TestComposePostgres: the database has the newest major version that the tests run, and its data is in the volume.
func TestComposePostgres(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../scripts/postgres/fetch")
	if err != nil {
		t.Fatal(err)
	}
	majors := regexp.MustCompile(`\[(\d+)\]=\d`).FindAllSubmatch(script, -1)
	if len(majors) == 0 {
		t.Fatal("no versions")
	}
	project, err := compose(t, "NOTIFYD_IMAGE=notifyd:0.1.0")
	if err != nil {
		t.Fatal(err)
	}
	postgres := project.Services["postgres"]
	if want := "postgres:" + string(majors[len(majors)-1][1]) + "."; !strings.HasPrefix(postgres.Image, want) {
		t.Errorf("the database is %s, want %s", postgres.Image, want)
	}
	// Since version 18 the image refuses a volume at the directory data below it.
	if len(postgres.Volumes) != 1 || postgres.Volumes[0].Type != types.VolumeTypeVolume || postgres.Volumes[0].Target != "/var/lib/postgresql" {
		t.Errorf("%+v", postgres.Volumes)
	}
}
