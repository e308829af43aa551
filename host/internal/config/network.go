package config

import (
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/service"
)

// Nomad's network block; a workload here has its node's network.
var (
	networkFields = fields{
		attrs: []string{"mode"}, labelled: []string{"port"},
		refused: map[string]string{
			"dns":      "a workload has its node's resolver; leave it out",
			"cni":      "a workload has its node's network; leave it out",
			"hostname": "a workload has its node's name; leave it out",
		},
	}
	portFields = fields{
		attrs: []string{"static"},
		refused: map[string]string{
			"to":               "a workload has its node's network, where a port is one number inside and outside; leave it out",
			"host_network":     "a port is taken on all addresses of the node; leave it out",
			"ignore_collision": "a port is given to one workload of the node only; leave it out",
		},
	}
)

func (s *section) ports() []*hostv1.Port {
	block := s.one("network")
	if block == nil {
		return nil
	}
	in := s.inner(block, networkFields)
	var mode string
	if in.str("mode", &mode) && mode != "host" {
		in.fail("mode", `%q is not supported: a workload has its node's network; leave it out, or write mode = "host"`, mode)
	}
	var ports []*hostv1.Port
	labels, numbers := map[string]bool{}, map[int64]string{}
	for _, block := range in.content.Blocks.OfType("port") {
		label := block.Labels[0]
		in := in.inner(block, portFields)
		if err := service.CheckLabel(label); err != nil {
			in.problems.add(block.DefRange, "%s: %v", in.path, err)
		}
		if labels[label] {
			in.problems.add(block.DefRange, "%s: block given twice; each needs a label of its own", in.path)
		}
		labels[label] = true
		var static int64
		in.integer("static", 1, 65535, &static)
		if other, taken := numbers[static]; taken && static > 0 {
			in.fail("static", "%d is that of port %q too", static, other)
		}
		numbers[static] = label
		ports = append(ports, &hostv1.Port{Label: label, Static: int32(static)})
	}
	return ports
}
