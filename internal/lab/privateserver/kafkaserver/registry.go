package kafkaserver

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// RegistryPath is the path of the API that is compatible with Confluent's Schema Registry.
const RegistryPath = "/apis/ccompat/v7"

// Registry describes an Apicurio schema registry that keeps its schemas in memory.
func Registry() privateserver.Program {
	return privateserver.Program{
		Name: "Apicurio Registry",
		Command: func(s *privateserver.Server) (string, []string, error) {
			java, err := findJava()
			if err != nil {
				return "", nil, err
			}

			dir, err := findRegistry()
			if err != nil {
				return "", nil, err
			}

			classPath := filepath.Join(dir, "*") + string(os.PathListSeparator) + filepath.Join(dir, "lib", "*")
			args := append(Config{}.flags(),
				"-Djava.io.tmpdir="+s.Dir(),
				"-Dquarkus.http.host=127.0.0.1",
				"-Dquarkus.http.port="+strconv.Itoa(s.Port()),
				"-cp", classPath, "io.quarkus.runner.GeneratedMain",
			)
			return java, args, nil
		},
		Ask: askRegistry,
	}
}

// findRegistry returns the directory that scripts/registry/setup has filled.
func findRegistry() (string, error) {
	root, err := checkout()
	if err != nil {
		return "", err
	}

	found, err := filepath.Glob(filepath.Join(root, ".cache", "registry", "*", "apicurio-registry-app-*-runner.jar"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("no .cache/registry: the schema registry is %w (make setup fetches it)", privateserver.ErrNotFound)
	}
	return filepath.Dir(found[len(found)-1]), nil
}

// askRegistry requests the list of subjects from the API.
func askRegistry(ctx context.Context, s *privateserver.Server) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr()+RegistryPath+"/subjects", nil)
	if err != nil {
		return err
	}

	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return err
	}
	if err := res.Body.Close(); err != nil {
		return err
	}

	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the registry answers %s", res.Status)
	}
	return nil
}
