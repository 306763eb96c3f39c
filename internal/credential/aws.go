package credential

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/feature/rds/auth"
)

// rdsLifetime is how long a token is used for new connections. RDS accepts a token for 15 minutes:
// https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.html
const rdsLifetime = 10 * time.Minute

// RDS makes tokens for databases of Amazon RDS and Aurora that authenticate with IAM. It takes its identity from the AWS
// SDK: environment, files, web identity, or the role of the task or machine. It is safe for concurrent use.
type RDS struct {
	region string

	mu     sync.Mutex
	access aws.CredentialsProvider // nil before the first token
	tokens map[target]result
}

type target struct{ address, user string }

// NewRDS returns an RDS for the databases of a region.
func NewRDS(region string) *RDS { return &RDS{region: region, tokens: make(map[target]result)} }

// Get returns the token of a user for a database at host:port.
func (r *RDS) Get(ctx context.Context, address, user string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	at := target{address, user}
	if t, is := r.tokens[at]; is && time.Now().Before(t.until) {
		return t.text, nil
	}

	if r.access == nil {
		c, err := config.LoadDefaultConfig(ctx, config.WithRegion(r.region))
		if err != nil {
			return "", fmt.Errorf("load the configuration of AWS: %w", err)
		}
		r.access = c.Credentials
	}

	began := time.Now()
	token, err := auth.BuildAuthToken(ctx, address, r.region, user, r.access)
	if err != nil {
		return "", fmt.Errorf("make a token of AWS IAM: %w", err)
	}

	r.tokens[at] = result{token, began.Add(rdsLifetime)}
	return token, nil
}
