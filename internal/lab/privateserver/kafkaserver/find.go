package kafkaserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// EnvLib names the environment variable with the directory of Kafka's jars. If it is set,
// [Find] looks nowhere else.
const EnvLib = "NOTIFYD_KAFKA_LIB"

// Programs run a server.
type Programs struct {
	Java string // path of the program java
	Lib  string // directory with Kafka's jars
}

// Find looks for java in JAVA_HOME and PATH, and for Kafka's jars in the directory that
// [EnvLib] names, or in .cache/kafka/lib of the notifyd checkout around the working
// directory. The error wraps [privateserver.ErrNotFound] and names the cure.
func Find() (Programs, error) {
	java, err := findJava()
	if err != nil {
		return Programs{}, err
	}

	lib := os.Getenv(EnvLib)
	if lib == "" {
		lib, err = checkoutLib()
		if err != nil {
			return Programs{}, err
		}
	}

	jars, err := filepath.Glob(filepath.Join(lib, "kafka_*.jar"))
	if err != nil || len(jars) == 0 {
		return Programs{}, fmt.Errorf("%s has no kafka_*.jar: Kafka is %w (make setup fetches it; %s names another directory)",
			lib, privateserver.ErrNotFound, EnvLib)
	}

	return Programs{Java: java, Lib: lib}, nil
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if java, err := exec.LookPath(filepath.Join(home, "bin", "java")); err == nil {
			return java, nil
		}
	}

	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("java is %w (install a Java runtime, such as openjdk-17-jre-headless)", privateserver.ErrNotFound)
	}
	return java, nil
}

// checkoutLib returns the directory of the jars in the checkout.
func checkoutLib() (string, error) {
	dir, err := checkout()
	if err != nil {
		return "", fmt.Errorf("%w (or set %s to the directory of Kafka's jars)", err, EnvLib)
	}
	return filepath.Join(dir, ".cache", "kafka", "lib"), nil
}

// checkout returns the directory of notifyd's go.mod, which is the working directory or a parent.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}

	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "kafka", "pom.xml")); err == nil {
			return dir, nil
		}

		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("what make setup fetches is %w: the working directory is not in a checkout of notifyd",
				privateserver.ErrNotFound)
		}
		dir = parent
	}
}
