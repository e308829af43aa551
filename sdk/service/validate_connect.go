package service

import (
	"regexp"
	"strconv"
	"sync"
)

func (v *validator) connect(at field, s *Service) {
	c := s.Connect
	given := 0
	for _, is := range []bool{c.Native, c.SidecarService != nil, c.Gateway != nil} {
		if is {
			given++
		}
	}
	if given != 1 {
		v.fail(at, "exactly one of native, sidecar_service and gateway is required")
	}
	if c.Native && s.Port == "" {
		v.fail(at.in("native"), "the service needs a port")
	}
	if c.Native && c.Admin != "" {
		v.fail(at.in("admin"), "the service has no proxy")
	}
	v.oneOf(at.in("admin"), c.Admin, AdminUnix, AdminTCP, AdminNone)
	if c.SidecarService != nil {
		v.sidecar(at.in("sidecar_service"), c.SidecarService)
	}
	if c.Gateway != nil {
		v.gateway(at.in("gateway"), s, c.Gateway)
	}
}

func (v *validator) sidecar(at field, s *SidecarService) {
	v.port(at.in("port"), s.Port)
	v.meta(at.in("meta"), s.Meta)
	if s.Proxy == nil {
		return
	}
	at = at.in("proxy")
	v.between(at.in("local_service_port"), s.Proxy.LocalServicePort, 0, maxPort)
	v.port(at.in("local_service_port"), s.Proxy.LocalServicePortLabel)
	v.meshGateway(at, s.Proxy.MeshGateway)
	v.upstreams(at, s.Proxy.Upstreams)
	if s.Proxy.Expose != nil {
		v.exposed(at.in("expose"), s.Proxy.Expose.Paths)
	}
}

func (v *validator) meshGateway(at field, m *MeshGateway) {
	if m != nil {
		v.oneOf(at.in("mesh_gateway").in("mode"), m.Mode, "none", "local", "remote")
	}
}

var socketMode = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^0?[0-7]{3}$`) })

func (v *validator) upstreams(at field, upstreams []Upstream) {
	destinations, binds := map[[6]string]bool{}, map[string]bool{}
	for i := range upstreams {
		u := &upstreams[i]
		at := at.element("upstreams", i, quoted("upstreams", u.DestinationName, i))
		switch u.DestinationName {
		case "":
			v.fail(at.in("destination_name"), "is required")
		case "*":
			v.fail(at.in("destination_name"), "must name one service")
		}
		v.oneOf(at.in("destination_type"), u.DestinationType, "service", "prepared_query")
		if u.DestinationPeer != "" && u.Datacenter != "" {
			v.fail(at.in("datacenter"), "destination_peer is given too; only one of them can be")
		}
		v.meshGateway(at, u.MeshGateway)
		if bind := v.bind(at, u); bind != "" && binds[bind] {
			v.fail(at, "another upstream binds %s too", bind)
		} else {
			binds[bind] = true
		}
		key := [6]string{
			u.DestinationName, u.DestinationType, u.DestinationNamespace, u.DestinationPartition,
			u.DestinationPeer, u.Datacenter,
		}
		if u.DestinationType == "" {
			key[1] = "service"
		}
		if u.DestinationName != "" && destinations[key] {
			v.fail(at.in("destination_name"), "another upstream is the same service")
		}
		destinations[key] = true
	}
}

// bind checks the local address of an upstream, and returns it.
func (v *validator) bind(at field, u *Upstream) string {
	v.between(at.in("local_bind_port"), u.LocalBindPort, 0, maxPort)
	port := u.LocalBindPortLabel
	switch {
	case port == "" && u.LocalBindPort != 0:
		port = strconv.Itoa(int(u.LocalBindPort))
	case u.LocalBindPort != 0:
		v.fail(at.in("local_bind_port_label"), "local_bind_port is given too; only one of them can be")
		return ""
	default:
		v.port(at.in("local_bind_port"), port)
	}
	switch {
	case port == "" && u.LocalBindSocketPath == "":
		v.fail(at.in("local_bind_port"), "is required, or local_bind_socket_path")
		return ""
	case port != "" && u.LocalBindSocketPath != "":
		v.fail(at.in("local_bind_socket_path"), "local_bind_port is given too; only one of them can be")
		return ""
	case u.LocalBindSocketPath == "" && u.LocalBindSocketMode != "":
		v.fail(at.in("local_bind_socket_mode"), "there is no local_bind_socket_path")
	case u.LocalBindSocketMode != "" && !socketMode().MatchString(u.LocalBindSocketMode):
		v.fail(at.in("local_bind_socket_mode"), "%q is no mode such as \"0600\"", u.LocalBindSocketMode)
	}
	if u.LocalBindSocketPath != "" {
		v.absolute(at.in("local_bind_socket_path"), u.LocalBindSocketPath)
		return u.LocalBindSocketPath
	}
	address := u.LocalBindAddress
	if address == "" {
		address = "127.0.0.1"
	}
	return address + ":" + port
}

func (v *validator) exposed(at field, paths []ExposePath) {
	listeners := map[string]bool{}
	for i := range paths {
		p := &paths[i]
		at := at.element("paths", i, quoted("path", p.Path, i))
		v.absolute(at.in("path"), p.Path)
		v.oneOf(at.in("protocol"), p.Protocol, "http", "http2")
		if p.LocalPathPortLabel == "" {
			v.between(at.in("local_path_port"), p.LocalPathPort, 1, maxPort)
		}
		v.port(at.in("local_path_port"), p.LocalPathPortLabel)
		if p.ListenerPort == "" {
			v.fail(at.in("listener_port"), "is required")
			continue
		}
		v.port(at.in("listener_port"), p.ListenerPort)
		if listeners[p.ListenerPort] {
			v.fail(at.in("listener_port"), "another path has %s too", p.ListenerPort)
		}
		listeners[p.ListenerPort] = true
	}
}
