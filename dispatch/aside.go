package dispatch

import "time"

// asideWindow is how much work, in time, an engine may have in a lane for which live deliveries must
// not wait.
const asideWindow = 2 * time.Millisecond

// GrantAside is Grant for deliveries that may take only what live ones leave: those of a replay. held
// is how many of them the lane has. They fill half of the lane at most, and of a fast one only as much as
// it works off in 2 ms, so that a live delivery finds room, and hardly waits. Nothing is granted for
// less than half of that: the engine asks again after the answers. Where live deliveries have the room,
// onRoom is called as for Grant.
func (l Lane) GrantAside(n, held int) int {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	limit := l.l.asideLocked()
	free := limit - held
	if 2*free < limit {
		return 0
	}
	now := time.Now()
	n = min(n, free)
	room := l.l.roomLocked(now)
	if room < min(n, l.l.fairLocked()) {
		room = 0
	}
	return l.l.takeRoomLocked(now, n, room)
}

// asideLocked returns how many deliveries may be in the lane that live ones must not wait for.
func (l *lane) asideLocked() int {
	half := l.capacityLocked() / 2
	if l.tempo.pace <= 0 {
		return max(1, half)
	}
	workers := max(1, l.crew.staffLocked())
	quick := int(int64(workers) * int64(asideWindow) / int64(l.tempo.pace))
	return max(1, min(half, max(workers*l.perCall()/2, quick)))
}
