package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

var workloadColumns = columns[*hostv1.Workload]{
	[]string{"ID", "NAMESPACE", "STATE", "VOLUMES", "SERVICES", "PID", "AGE", "MESSAGE"},
	func(t *Table, w *hostv1.Workload) {
		t.Row(w.GetSpec().GetId(), w.GetSpec().GetNamespace(), stateCell(w.GetState()), len(w.GetSpec().GetVolumes()),
			len(w.GetSpec().GetServices()), number(w.GetPid()), age(w.GetStartedAt()), w.GetMessage())
	},
	"no workloads; start one with pannier workload run or pannier workload start",
}

// showWorkload shows a workload, and those who have its volumes.
func showWorkload(p *Printer, w *hostv1.Workload, holders ...*hostv1.Holder) {
	t := NewTable()
	t.Row("ID", w.GetSpec().GetId())
	t.Row("Namespace", w.GetSpec().GetNamespace())
	t.Row("Node", w.GetNode())
	t.Row("State", stateCell(w.GetState()))
	said := w.GetMessage()
	if w.GetRelease() == nil || said != w.GetRelease().GetError() {
		t.Row("Message", said)
	}
	if len(w.GetWaitsFor()) > 0 {
		t.Row("Waits for", strings.Join(w.GetWaitsFor(), ", "))
		t.Row("Waits since", age(w.GetWaitsSince()))
	}
	if w.GetRelease() != nil {
		t.Row("Not released", Cell{releaseText(w.GetRelease()), Yellow})
	}
	t.Row("Process", number(w.GetPid()))
	t.Row("Released with", number(w.GetOwnerPid()))
	t.Row("Started", age(w.GetStartedAt()))
	t.some("Ended", age(w.GetEndedAt()))
	t.some("Ports", joinPorts(w.GetPorts()))
	t.some("Secrets", w.GetSecretsDir())
	p.Show(t)
	p.Section("Mounts", mountTable(w))
	held := NewTable("VOLUME", "OWNER", "PID", "COMMAND", "PATH", "ENDED BY")
	for _, h := range holders {
		held.Row(h.GetRequest(), h.GetOwner(), number(h.GetPid()), h.GetCommand(), h.GetPath(), h.GetStop())
	}
	p.Section("Holders", held)
	devices := NewTable("REQUEST", "GROUP", "ID", "PLUGIN")
	for _, d := range w.GetDevices() {
		devices.Row(d.GetRequest(), d.GetGroup(), d.GetId(), d.GetPlugin())
	}
	p.Section("Devices", devices)
	for _, s := range w.GetServices() {
		p.heading("Service " + s.GetName())
		p.Show(serviceTable(s))
	}
	if len(w.GetSteps()) == 0 {
		return
	}
	p.heading("Steps")
	for _, s := range w.GetSteps() {
		line := stepLine{step: s, since: s.GetStartedAt().AsTime(), brief: strings.Contains(said, s.GetError())}
		p.write(line.text(p.colored(p.Out)) + "\n")
	}
}

// mountTable has what a workload has mounted, and what its devices need.
func mountTable(w *hostv1.Workload) *Table {
	access := func(m interface{ GetReadOnly() bool }) string {
		if m.GetReadOnly() {
			return "read-only"
		}
		return "read-write"
	}
	t := NewTable("VOLUME", "DESTINATION", "HOST PATH", "ACCESS", "KIND")
	for _, m := range w.GetMounts() {
		kind := "folder"
		if m.GetBlock() {
			kind = "device"
		}
		name := m.GetVolume()
		if m.GetDriver() != "" {
			name, kind = m.GetRequest(), "folder, made by "+m.GetDriver()
		}
		t.Row(name, m.GetDestination(), m.GetHostPath(), access(m), kind)
	}
	for _, m := range w.GetReservation().GetMounts() {
		t.Row("", m.GetTaskPath(), m.GetHostPath(), access(m), "of a device")
	}
	for _, d := range w.GetReservation().GetNodes() {
		t.Row("", d.GetTaskPath(), d.GetHostPath(), d.GetPermissions(), "device")
	}
	return t
}

// serviceTable has the status of a service, without empty values.
func serviceTable(s *hostv1.ServiceStatus) *Table {
	t := NewTable()
	t.Row("ID", s.GetId())
	t.some("Proxy", s.GetProxyId())
	t.Row("Consul", s.GetConsul())
	t.some("Port", s.GetPort())
	t.some("Token", s.GetTokenAccessor())
	t.some("Token expires", ahead(s.GetTokenExpiresAt()))
	t.some("Token file", s.GetTokenFile())
	t.some("Bootstrap file", s.GetBootstrapFile())
	t.some("Admin socket", s.GetAdminSocket())
	t.some("Ready socket", s.GetReadySocket())
	t.some("Admin port", s.GetAdminPort())
	t.some("Ready port", s.GetReadyPort())
	t.some("Message", Cell{s.GetMessage(), Yellow})
	return t
}

// joinPorts writes ports as label=number, sorted.
func joinPorts(ports map[string]int32) string {
	var list []string
	for _, label := range slices.Sorted(maps.Keys(ports)) {
		list = append(list, fmt.Sprintf("%s=%d", label, ports[label]))
	}
	return strings.Join(list, " ")
}
