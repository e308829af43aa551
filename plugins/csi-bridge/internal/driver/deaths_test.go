package driver

import (
	"testing"
	"testing/synctest"
	"time"
)

// A driver that is restarted at once is connected to before its death is charged: that connection is no chance that
// somebody has given it.
func TestDeathOfADriverThatIsUpAgain(t *testing.T) {
	d, call := deaths{}, deadly{method: "/csi.v1.Controller/ListVolumes"}
	d.connected()
	d.charge(call, d.connection())
	d.connected()
	on := d.connection()
	d.connected()
	d.charge(call, on)
	if times, _, _ := d.of(call); times != 2 {
		t.Errorf("the driver died %d times in a row, want 2", times)
	}
	d.connected()
	d.connected()
	if times, _, _ := d.of(call); times != 0 {
		t.Errorf("somebody has restarted the driver: %d deaths count, want 0", times)
	}
}

// The refusal says for how long.
func TestDeathIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, call := deaths{}, deadly{method: "/csi.v1.Controller/ListVolumes"}
		d.connected()
		for range maxDeaths {
			d.charge(call, d.connection())
		}
		time.Sleep(deathsCount)
		if times, _, _ := d.of(call); times != maxDeaths {
			t.Errorf("after %s the driver died %d times in a row, want %d", deathsCount, times, maxDeaths)
		}
		time.Sleep(time.Second)
		if times, _, _ := d.of(call); times != 0 {
			t.Errorf("later the driver still died %d times in a row", times)
		}
	})
}
