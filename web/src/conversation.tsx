// The page of one session: its conversation, its current activity, its open questions, and the composer.

import { type ComponentChildren, type VNode } from "preact";
import { useLayoutEffect, useMemo } from "preact/hooks";
import { Activity } from "./activity";
import { messageOf } from "./api";
import { CommentsBar } from "./comments";
import { ComposerBox } from "./composer";
import { Conversation, type PageContext } from "./conversation_state";
import { FindBar } from "./find";
import { planWords } from "./limits";
import { NeedsPill } from "./list";
import { MachineGoneNotice } from "./machines";
import { ModeAndModel, SessionMenu } from "./menu";
import { Notices } from "./notices";
import { QuestionList } from "./questions";
import { QueueList } from "./queue";
import { isWatched, routeOf, statusWord, titleOf } from "./sessions";
import { ContextRing, Todos } from "./todo";
import { Turns } from "./turn";
import { cx } from "./ui";
import { costOf, place } from "./words";

interface Props {
  id: string;
  pageContext: PageContext;
  /** The question to show. */
  wanted: string | null;
  /** The text to find. */
  searchText: string | null;
}

export function ConversationPage({ id, pageContext, wanted, searchText }: Props): VNode {
  const session = useMemo(() => new Conversation(id, pageContext, wanted, searchText), []);
  const { row, missing } = session;
  useLayoutEffect(() => {
    void session.open();
    return () => session.close();
  }, []);
  useLayoutEffect(() => {
    // When the scroller changes its size, a reader at the end stays at the end.
    const resized = new ResizeObserver(() => session.keepEnd());
    if (session.shown.scroller.current !== null) resized.observe(session.shown.scroller.current);
    return () => resized.disconnect();
  }, []);
  return (
    <div class={cx("conversation", missing.value && "missing", row.value.sharedBy && "borrowed", isWatched(row.value) && "watched")}>
      <Head session={session} pageContext={pageContext} />
      <FindBar find={session.find} />
      <Todos list={session.todo} />
      <div class="scroller" tabIndex={0} role="region" aria-label="Conversation" ref={session.shown.scroller} onScroll={() => session.scrolled()}>
        <Turns shown={session.shown} acts={session.acts} />
        <OfflineMachine session={session} pageContext={pageContext} />
        <div class="notices"><Notices row={row} say={session.sendText} /></div>
        <div class="asking">
          <QuestionList questions={session.questions} directory={session.acts.directory} owner={session.owner} send={session.answer} />
        </div>
        <QueueList queue={session.queue} acts={session.queueActs} />
        <p class="note" role="status">{missing.value ? <>There is no such session, or it is not yours. <a href="#/">All sessions</a></> : session.note.value}</p>
      </div>
      <div class="newest-place">
        {/* Not while a question is open, so that it never covers the answers. */}
        {!session.following.value && !session.isAsked.value && <button type="button" class="newest" onClick={() => void session.scrollToEnd()}>Jump to the end</button>}
      </div>
      <div class="comments-place"><CommentsBar comments={session.comments} /></div>
      <Activity live={pageContext.live} row={row} doing={session.doing} />
      <Watching session={session} />
      <ComposerBox composer={session.composer} label="Message" placeholder="Message Claude" send="Send" stop={session.interrupt}>
        <ModeAndModel row={row} pageContext={pageContext} />
      </ComposerBox>
    </div>
  );
}

function Head({ session, pageContext }: { session: Conversation; pageContext: PageContext }): VNode {
  const row = session.row.value;
  const missing = session.missing.value;
  return (
    <header class="view-head">
      <a class="back" href="#/" aria-label="All sessions">‹</a>
      <div class="heading">
        <h1 tabIndex={-1} dir="auto" ref={session.heading}>{missing ? "Not found" : titleOf(row)}</h1>
        {!missing && <About session={session} />}
      </div>
      <div class="pill-place"><NeedsPill live={pageContext.live} except={session.id.value} /></div>
      {!missing && <a class="quiet changes-link" href={`#${routeOf(session.id.value)}/changes`}>Changes</a>}
      <button type="button" class="quiet find-open" aria-label="Find in this conversation" onClick={() => session.find.toggle()} />
      {!missing && <SessionMenu row={session.row} pageContext={pageContext} moved={(id, words) => void session.continueElsewhere(id, words)} jump={(turn) => void session.jump(turn, null)} />}
    </header>
  );
}

/** Facts about the session: its state, where it is, and what it has cost. */
function About({ session }: { session: Conversation }): VNode {
  const row = session.row.value;
  const status = statusWord(row);
  const more: readonly ComponentChildren[] = [
    row.inTerminal && "in a terminal", row.archived && "archived", row.machine && `on ${row.machine}`, row.sharedBy && `shared by ${row.sharedBy}`,
    row.branch, row.model, row.permissionMode !== "default" && row.permissionMode, costOf(row), planWords(row.planUsage) && `plan: ${planWords(row.planUsage)}`,
    row.queued, row.retrying,
  ];
  return (
    <p class="about">
      {status && <span class="badge" data-status={row.needs ?? row.status ?? ""}>{status}</span>} <ContextRing row={session.row} />
      <span title={row.directory ?? undefined}>{place(row.directory)}</span>
      {more.filter(Boolean).map((one) => ` · ${one}`)}
    </p>
  );
}

/** The actions that the user has while the machine of the session is gone. */
function OfflineMachine({ session, pageContext }: { session: Conversation; pageContext: PageContext }): VNode | null {
  void pageContext.live.version.value;
  const lost = session.lostMachine.value;
  if (lost === null) return null;
  return (
    <MachineGoneNotice id={session.id.value} lost={lost} machines={pageContext.live.machines} fail={(error) => (session.note.value = messageOf(error))}
      moved={({ sessionId, message, notices }) => void session.continueElsewhere(sessionId, [message, ...(notices ?? [])].join(" "))} />
  );
}

/** Replaces the composer if the user may only watch, or while the session is open in a terminal. */
function Watching({ session }: { session: Conversation }): VNode | null {
  const row = session.row.value;
  if (isWatched(row)) return <p class="watching hint">You are watching. {row.sharedBy ?? ""} has shared this session with you.</p>;
  if (!row.inTerminal) return null;
  return <p class="watching hint">This session is open in a terminal. You can answer its questions here, and send messages after it is closed there.</p>;
}
