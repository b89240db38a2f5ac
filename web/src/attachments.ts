// Images, PDF documents and text files that are attached to a message: chosen, taken with the camera, dropped or pasted. A
// file that cannot be sent is refused here, before anything is sent.

import { size } from "./words";

const MAX_ATTACHMENTS = 10;
/** The most bytes that the server accepts for one image or PDF. */
const MAX_PICTURE = 5 << 20;
const MAX_TOTAL = 15 << 20;
const MAX_FILE = 200_000;
/** Images with a longer side are scaled down: the model sees no more detail. */
const MAX_SIDE = 2048;
const PICTURE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export interface Attachment {
  name: string;
  /** One of three is set: an image or a PDF document as a `data:` URL, or the text of a file. */
  picture?: string;
  document?: string;
  text?: string;
  bytes: number;
}

/** The message that this page last started a session with, and its images: the events of the turn do not contain them. */
export const started: { messageId: string; data: readonly string[] } = { messageId: "", data: [] };

/** Appends files to the attachments; `refused` says why the last refused file was not accepted. */
export async function withMore(list: readonly Attachment[], files: readonly File[]): Promise<{ all: readonly Attachment[]; refused: string }> {
  let all = list;
  let refused = "";
  for (const file of files) {
    try {
      const attachment = await read(file);
      if (all.length >= MAX_ATTACHMENTS) throw new Error(`At most ${MAX_ATTACHMENTS} attachments can be sent with one message.`);
      const together = all.reduce((sum, one) => sum + one.bytes, attachment.bytes);
      if (together > MAX_TOTAL) throw new Error(`${file.name} does not fit: all attachments together can be at most ${size(MAX_TOTAL)}.`);
      all = [...all, attachment];
    } catch (error) {
      refused = error instanceof Error ? error.message : String(error);
    }
  }
  return { all, refused };
}

/** The text of a message, followed by its text files. Each states its length, which marks its end. */
export function withFiles(text: string, attachments: readonly Attachment[]): string {
  const files = attachments.flatMap(({ name, text: content }) => (content === undefined ? [] : [
    `<attached-file name="${name.replace(/["<>\n\r]/g, "_")}" characters="${content.length}">\n${content}\n</attached-file>`]));
  return [text, ...files].filter(Boolean).join("\n\n");
}

export interface AttachedFile {
  name: string;
  text: string;
}

const OPENING = /(?:^|\n\n)<attached-file name="([^"\n]*)" characters="(\d{1,7})">\n/y;

/** The reverse of `withFiles`: the text that was typed, and the files after it. */
export function splitFiles(message: string): { text: string; files: AttachedFile[] } {
  const first = message.startsWith("<attached-file ") ? 0 : message.indexOf("\n\n<attached-file ");
  if (first < 0) return { text: message, files: [] };
  const files: AttachedFile[] = [];
  let at = first;
  while (at < message.length) {
    OPENING.lastIndex = at;
    const found = OPENING.exec(message);
    if (found === null) return { text: message, files: [] };
    const end = OPENING.lastIndex + Number(found[2]);
    if (!message.startsWith("\n</attached-file>", end)) return { text: message, files: [] };
    files.push({ name: found[1] as string, text: message.slice(OPENING.lastIndex, end) });
    at = end + "\n</attached-file>".length;
  }
  return { text: message.slice(0, first), files };
}

/** The images and documents of a message, in the form that the server accepts. */
export function dataOf(attachments: readonly Attachment[]): string[] {
  return attachments.flatMap(({ picture: shown, document: read }) => [shown, read].filter((data) => data !== undefined));
}

async function read(file: File): Promise<Attachment> {
  if (file.type === "application/pdf") {
    if (file.size > MAX_PICTURE) throw new Error(`${file.name} is too large (${size(file.size)}); a PDF can be at most ${size(MAX_PICTURE)}.`);
    return { name: file.name, document: await dataUrl(file), bytes: file.size };
  }
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") return readPicture(file);
  if (file.size > MAX_FILE) throw new Error(`${file.name} is too large (${size(file.size)}); a text file can be at most ${size(MAX_FILE)}.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    text = "\0";
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not an image, PDF or text file and cannot be attached.`);
  return { name: file.name, text, bytes: file.size };
}

async function readPicture(file: File): Promise<Attachment> {
  const name = file.name || "picture";
  let bitmap: ImageBitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`${name} is not a supported image; use PNG, JPEG, GIF or WebP.`);
  }
  const longest = Math.max(bitmap.width, bitmap.height);
  const asIs = PICTURE_TYPES.includes(file.type) && file.size <= MAX_PICTURE && longest <= MAX_SIDE;
  const blob = asIs ? file : await scaled(bitmap, Math.min(1, MAX_SIDE / longest));
  bitmap.close();
  if (blob.size > MAX_PICTURE) throw new Error(`${name} is too large (${size(blob.size)}); an image can be at most ${size(MAX_PICTURE)}.`);
  return { name, picture: await dataUrl(blob), bytes: blob.size };
}

function scaled(bitmap: ImageBitmap, factor: number): Promise<Blob> {
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * factor));
  canvas.height = Math.max(1, Math.round(bitmap.height * factor));
  const context = canvas.getContext("2d");
  if (context === null) return Promise.reject(new Error("This browser cannot resize the image."));
  context.fillStyle = "#fff"; // JPEG has no transparency
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob(
    (blob) => (blob ? resolve(blob) : reject(new Error("The image cannot be resized."))), "image/jpeg", 0.85));
}

function dataUrl(blob: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error ?? new Error("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}
