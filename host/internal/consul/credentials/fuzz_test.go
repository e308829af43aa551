package credentials

import (
	"strings"
	"testing"

	"github.com/pannier/pannier/host/internal/system/owner"
)

// Every process chooses the address that it connects from, and a container's systemd the names of its units.
func FuzzAddress(f *testing.F) {
	f.Add("@0123/unit/web.service/web.si_token", "/system.slice/web.service")
	f.Add("@0/unit/a.service/../x", "/system.slice/docker-0.scope/system.slice/a.service")
	f.Fuzz(func(t *testing.T, address, group string) {
		unit, name, ok := parse(address)
		if !ok {
			return
		}
		if !owner.IsUnit(unit) || name == "" || strings.Contains(name, "/") || !strings.HasSuffix(address, "/unit/"+unit+"/"+name) {
			t.Errorf("%q is credential %q of unit %q", address, name, unit)
		}
		if inUnit(group, unit) && !strings.Contains(group+"/", unit+"/") {
			t.Errorf("the control group %q is taken for unit %q", group, unit)
		}
	})
}
