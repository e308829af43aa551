package conformance

import (
	"testing"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/identity"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/storage"
)

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
