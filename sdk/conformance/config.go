package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
)

// Config is what is tested, and with what.
type Config struct {
	// Binary is the plugin's executable.
	Binary string
	// Args are its arguments, as in the agent's plugin block.
	Args []string
	// Kind that it must have, such as "storage.v1"; empty: any.
	Kind string
	// Config is the body of the plugin's config block as a JSON object; empty: {}.
	Config []byte
	// Secrets are texts that must not appear in a log, an error, an argument or an environment, such as the
	// contents of files that Config names. The kit adds the secrets that it passes itself.
	Secrets []string

	// Driver is a healthy CSI driver for testing a storage plugin. The kit creates and deletes volumes there.
	Driver storage.Driver
	// Volume is used if the plugin cannot create one. Nothing else may use it.
	Volume storage.Volume

	// Consul is for testing the other kinds. The kit removes what it puts there.
	Consul service.Consul
	// ProxyID is the service id of a proxy that is registered there, for testing a bootstrap plugin.
	ProxyID string
	// OwnBackend is true if an identity or registration plugin has an issuer or a catalog of its own, which Config names,
	// and uses no Consul. Its calls name none, and an issuer gets JWTs: JWKSURL in Config becomes the URL of the key set
	// that verifies them.
	OwnBackend bool

	// Listen are the names of the listening sockets of a front door, as in its listen blocks; empty: http.
	Listen []string
}

// JWKSURL stands in Config.Config for the URL of the JSON Web Key Set of the kit, in place of an agent's.
const JWKSURL = "JWKS_URL"

// Driver returns a CSI driver at an endpoint: unix:///path, or a path.
func Driver(endpoint string) storage.Driver {
	return storage.Driver{ID: "conformance", Endpoint: endpoint}
}

// Time limits for a plugin. They are generous, because they are meant to find calls that hang.
const (
	startTime = 10 * time.Second // from the start to the first answer
	callTime  = 10 * time.Second // a call whose backend answers, or is unreachable
	checkTime = time.Minute      // one check
	orphaned  = time.Second / 2  // the orphan timeout that the kit requests
)

var (
	stopTime    = 10 * time.Second // from Stop to the end of the process
	afterCancel = 5 * time.Second  // until cancelled calls must have ended
)

func (c *Config) check() error {
	if c.Binary == "" {
		return errors.New("no binary is named")
	}
	path, err := filepath.Abs(c.Binary)
	if err != nil {
		return fmt.Errorf("find the binary: %w", err)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("look at the binary: %w", err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not an executable file", path)
	}
	c.Binary = path
	if len(c.Config) == 0 {
		c.Config = []byte("{}")
	}
	if len(c.Listen) == 0 {
		c.Listen = []string{"http"}
	}
	if _, ok := kinds[c.Kind]; c.Kind != "" && !ok {
		return fmt.Errorf("kind %q is not one of %s", c.Kind, kindNames())
	}
	return nil
}

// Test tests a plugin, with a subtest for each check. Checks that need a backend which cfg lacks are skipped.
func Test(t *testing.T, cfg Config) {
	t.Helper()
	report, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range report.Results {
		res := &report.Results[i]
		t.Run(res.ID, func(t *testing.T) {
			switch res.Status {
			case Failed:
				t.Errorf("%s\nIt does not: %s\n%s", res.Says, res.Reason, res.Fix)
			case Skipped:
				t.Skip(res.Reason)
			case Passed:
			}
		})
	}
	if len(report.Left) > 0 {
		t.Errorf("the plugin has left behind: %q", report.Left)
	}
}
