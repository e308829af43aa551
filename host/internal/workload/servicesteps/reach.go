package servicesteps

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/pannier/pannier/sdk/service"
)

// checkReach refuses a service whose checks would have the Consul agent connect to anything but this host and what the
// agent's configuration allows: it does so from the host, and shows the answer.
func (s *Steps) checkReach(svc *service.Service) error {
	var hosts []string
	for _, c := range svc.Checks {
		if c.Type != service.CheckProcess {
			hosts = append(hosts, cmp.Or(c.Address, svc.Address))
		}
	}
	if c := svc.Connect; c != nil && (c.SidecarService != nil || c.Gateway != nil) { // Consul checks whether it listens
		local := ""
		if c.SidecarService != nil && c.SidecarService.Proxy != nil {
			local = c.SidecarService.Proxy.LocalServiceAddress
		}
		hosts = append(hosts, cmp.Or(svc.Address, local))
	}
	for _, host := range hosts {
		if !s.reaches(svc.Consul, host) {
			return fmt.Errorf("service %q: a check of %q: it is no address of this host, and check_addresses in the block consul %q "+
				"of the agent's configuration does not allow it", svc.Name, host, svc.Consul)
		}
	}
	return nil
}

func (s *Steps) reaches(consul, host string) bool {
	allowed := s.CheckAddresses[consul]
	if host == "" || host == "localhost" || slices.Contains(allowed, host) {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false // a name is whatever its owner makes of it
	}
	if ip = ip.Unmap(); ip.IsLoopback() || ip.IsUnspecified() {
		return true
	}
	own, _ := net.InterfaceAddrs() // none: then only what is allowed
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip.AsSlice()) {
			return true
		}
	}
	return slices.ContainsFunc(allowed, func(text string) bool {
		network, err := netip.ParsePrefix(text)
		return err == nil && network.Contains(ip)
	})
}
