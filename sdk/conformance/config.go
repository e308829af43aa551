package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
	"github.com/pannier/pannier/sdk/storage"
)

// Config says what is tested, and with what.
type Config struct {
	// Binary is the plugin's executable.
	Binary string
	// Args are its arguments, as in the agent's plugin block.
	Args []string
	// Kind it must be of, such as "storage.v1"; empty: the one that it tells.
	Kind string
	// Config is the body of the plugin's config block as a JSON object; empty: {}.
	Config []byte
	// Secrets are texts that nobody may find in a log, an error, an argument or an
	// environment, such as what stands in files that Config names. The kit knows
	// those that it passes itself.
	Secrets []string

	// Driver is a healthy CSI driver, for a storage plugin. The kit makes volumes
	// there and deletes them.
	Driver storage.Driver
	// Volume is used where the plugin cannot create one: nobody else may use it.
	Volume storage.Volume

	// Consul is reached by the other kinds. What the kit puts there it takes out.
	Consul service.Consul
	// ProxyID is the service id of a proxy that is registered there, for a bootstrap
	// plugin.
	ProxyID string
}

// Driver is a CSI driver at an endpoint: unix:///path, or a path.
func Driver(endpoint string) storage.Driver {
	return storage.Driver{ID: "conformance", Endpoint: endpoint}
}

// The bounds that a plugin is held to. They are wide: what is looked for is what hangs.
const (
	startTime = 10 * time.Second // from the start to the first answer
	callTime  = 10 * time.Second // a call whose backend is there, or is away
	checkTime = time.Minute      // one check
	orphaned  = time.Second / 2  // the orphan timeout that the kit asks for
)

var (
	stopTime    = 10 * time.Second // from Stop to the end of the process
	afterCancel = 5 * time.Second  // until calls that were given up hold up nothing any more
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
	if _, ok := kinds[c.Kind]; c.Kind != "" && !ok {
		return fmt.Errorf("kind %q is not one of %s", c.Kind, kindNames())
	}
	return nil
}

// Storage proves a storage plugin, a subtest for each check. Without Config.Driver what
// needs a CSI driver is skipped.
func Storage(t *testing.T, cfg Config) {
	t.Helper()
	cfg.Kind = storage.Kind
	Test(t, cfg)
}

// Identity proves an identity plugin. Without Config.Consul what needs one is skipped.
func Identity(t *testing.T, cfg Config) {
	t.Helper()
	cfg.Kind = identity.Kind
	Test(t, cfg)
}

// Registration proves a registration plugin. Without Config.Consul what needs one is
// skipped.
func Registration(t *testing.T, cfg Config) {
	t.Helper()
	cfg.Kind = registration.Kind
	Test(t, cfg)
}

// Bootstrap proves a bootstrap plugin. Without Config.Consul and Config.ProxyID what
// needs them is skipped.
func Bootstrap(t *testing.T, cfg Config) {
	t.Helper()
	cfg.Kind = bootstrap.Kind
	Test(t, cfg)
}

// Device proves a device plugin, with the devices of this machine.
func Device(t *testing.T, cfg Config) {
	t.Helper()
	cfg.Kind = device.Kind
	Test(t, cfg)
}

// Test proves a plugin of any kind.
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
}
