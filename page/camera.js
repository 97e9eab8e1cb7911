// A photo of the camera, in a dialog. Browsers give it to localhost and over https only.

import { find } from "./dom.js";

export const canTakePhotos = () => Boolean(navigator.mediaDevices?.getUserMedia);

export class NoCamera extends Error {}

// The photo as a File; nothing when the dialog is left.
export async function takePhoto() {
  const stream = await opened();
  const dialog = find("camera");
  const video = find("viewfinder");
  video.srcObject = stream;
  find("shoot").disabled = true;
  dialog.showModal();
  try {
    await video.play();
    find("shoot").disabled = false;
    return await chosen(dialog, video);
  } finally {
    for (const track of stream.getTracks()) track.stop();
    video.srcObject = null;
    dialog.close();
  }
}

async function opened() {
  try {
    return await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (err) {
    throw new NoCamera(`no photo: ${err.message || "there is no camera, or the browser may not use it"}`);
  }
}

function chosen(dialog, video) {
  return new Promise((resolve) => {
    find("shoot").onclick = () => resolve(shot(video));
    find("leave-camera").onclick = () => resolve(undefined);
    dialog.oncancel = () => resolve(undefined);
  });
}

function shot(video) {
  const canvas = document.createElement("canvas");
  canvas.width = video.videoWidth;
  canvas.height = video.videoHeight;
  canvas.getContext("2d").drawImage(video, 0, 0);
  return new Promise((resolve) => {
    canvas.toBlob((blob) => resolve(new File([blob], "photo.jpg", { type: "image/jpeg" })), "image/jpeg", 0.92);
  });
}
