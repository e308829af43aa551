package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func (a *App) showWorkloads(workloads []*hostv1.Workload) error {
	if len(workloads) == 0 {
		a.Note("no workloads; start one with pannier workload run or pannier workload start")
		return nil
	}
	t := NewTable("ID", "NAMESPACE", "STATE", "VOLUMES", "SERVICES", "PID", "AGE", "MESSAGE")
	for _, w := range workloads {
		t.Row(w.GetSpec().GetId(), w.GetSpec().GetNamespace(), workloadState(w.GetState()), len(w.GetSpec().GetVolumes()),
			len(w.GetSpec().GetServices()), number(w.GetPid()), age(w.GetStartedAt()), w.GetMessage())
	}
	return a.Show(t)
}

func workloadState(state string) Cell {
	switch state {
	case "running":
		return Cell{state, Green}
	case "failed":
		return Cell{state, Red}
	case "stopped":
		return Cell{state, ""}
	default:
		return Cell{state, Yellow}
	}
}

// showWorkload shows a workload, and those who have its volumes.
func (a *App) showWorkload(w *hostv1.Workload, holders ...*hostv1.Holder) error {
	t := NewTable()
	t.Row("ID", w.GetSpec().GetId())
	t.Row("Namespace", w.GetSpec().GetNamespace())
	t.Row("Node", w.GetNode())
	t.Row("State", workloadState(w.GetState()))
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
	if w.GetEndedAt() != nil {
		t.Row("Ended", age(w.GetEndedAt()))
	}
	if len(w.GetPorts()) > 0 {
		t.Row("Ports", joinPorts(w.GetPorts()))
	}
	if w.GetSecretsDir() != "" {
		t.Row("Secrets", w.GetSecretsDir())
	}
	if err := a.Show(t); err != nil {
		return err
	}
	if len(w.GetMounts())+len(w.GetReservation().GetMounts())+len(w.GetReservation().GetNodes()) > 0 {
		if err := a.heading("Mounts"); err != nil {
			return err
		}
		if err := a.showMounts(w); err != nil {
			return err
		}
	}
	if len(holders) > 0 {
		if err := a.heading("Holders"); err != nil {
			return err
		}
		held := NewTable("VOLUME", "OWNER", "PID", "COMMAND", "PATH", "ENDED BY")
		for _, h := range holders {
			held.Row(h.GetRequest(), h.GetOwner(), number(h.GetPid()), h.GetCommand(), h.GetPath(), h.GetStop())
		}
		if err := a.Show(held); err != nil {
			return err
		}
	}
	if err := a.showAssignedDevices(w.GetDevices()); err != nil {
		return err
	}
	for _, s := range w.GetServices() {
		if err := a.showService(s); err != nil {
			return err
		}
	}
	if len(w.GetSteps()) == 0 {
		return nil
	}
	if err := a.heading("Steps"); err != nil {
		return err
	}
	for _, s := range w.GetSteps() {
		line := stepLine{step: s, since: s.GetStartedAt().AsTime(), brief: strings.Contains(said, s.GetError())}
		if _, err := fmt.Fprintln(a.Out, line.text(a.colored(a.Out))); err != nil {
			return err
		}
	}
	return nil
}

func (a *App) showMounts(w *hostv1.Workload) error {
	t := NewTable("VOLUME", "DESTINATION", "HOST PATH", "ACCESS", "KIND")
	for _, m := range w.GetMounts() {
		access, kind := "read-write", "folder"
		if m.GetReadOnly() {
			access = "read-only"
		}
		if m.GetBlock() {
			kind = "device"
		}
		name := m.GetVolume()
		if m.GetDriver() != "" {
			name, kind = m.GetRequest(), "folder, made by "+m.GetDriver()
		}
		t.Row(name, m.GetDestination(), m.GetHostPath(), access, kind)
	}
	addDeviceRows(t, w.GetReservation())
	return a.Show(t)
}

// addDeviceRows adds what a workload's devices need to a table of mounts.
func addDeviceRows(t *Table, r *hostv1.DeviceReservation) {
	for _, m := range r.GetMounts() {
		access := "read-write"
		if m.GetReadOnly() {
			access = "read-only"
		}
		t.Row("", m.GetTaskPath(), m.GetHostPath(), access, "of a device")
	}
	for _, d := range r.GetNodes() {
		t.Row("", d.GetTaskPath(), d.GetHostPath(), d.GetPermissions(), "device")
	}
}

// showAssignedDevices shows which devices a workload has.
func (a *App) showAssignedDevices(devices []*hostv1.GivenDevice) error {
	if len(devices) == 0 {
		return nil
	}
	if err := a.heading("Devices"); err != nil {
		return err
	}
	t := NewTable("REQUEST", "GROUP", "ID", "PLUGIN")
	for _, d := range devices {
		t.Row(d.GetRequest(), d.GetGroup(), d.GetId(), d.GetPlugin())
	}
	return a.Show(t)
}

// showService shows the status of a service, without empty values.
func (a *App) showService(s *hostv1.ServiceStatus) error {
	if err := a.heading(printable(fmt.Sprintf("Service %s", s.GetName()))); err != nil {
		return err
	}
	t := NewTable()
	some := func(name string, value any) {
		if text := fmt.Sprint(value); text != "" && text != "0" {
			t.Row(name, text)
		}
	}
	t.Row("ID", s.GetId())
	some("Proxy", s.GetProxyId())
	t.Row("Consul", s.GetConsul())
	some("Port", s.GetPort())
	some("Token", s.GetTokenAccessor())
	some("Token expires", ahead(s.GetTokenExpiresAt()))
	some("Token file", s.GetTokenFile())
	some("Bootstrap file", s.GetBootstrapFile())
	some("Admin socket", s.GetAdminSocket())
	some("Ready socket", s.GetReadySocket())
	some("Admin port", s.GetAdminPort())
	some("Ready port", s.GetReadyPort())
	if s.GetMessage() != "" {
		t.Row("Message", Cell{s.GetMessage(), Yellow})
	}
	return a.Show(t)
}

// joinPorts writes ports as label=number, sorted.
func joinPorts(ports map[string]int32) string {
	var list []string
	for _, label := range slices.Sorted(maps.Keys(ports)) {
		list = append(list, fmt.Sprintf("%s=%d", label, ports[label]))
	}
	return strings.Join(list, " ")
}
